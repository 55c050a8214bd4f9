-- Looks for another reader that is live: one of its timeouts is there. Dead readers do not keep the lock. The last live one
-- that leaves removes it, as in Redisson.
-- Reads: key, state (its first element is the mode), holder (the field of the reader that leaves); KEYS[2], the tokens; KEYS[3],
-- which ends with holder and ':rwlock_timeout:1'
-- Sets: lives
local prefix = string.sub(KEYS[3], 1, -18 - #holder)
local lives = state[1] ~= 'read'
-- First a reader of ours, which is found without a walk.
for _, other in ipairs(lives and {} or call('ZRANGEBYSCORE', KEYS[2], 0, '+inf', 'LIMIT', 0, 2)) do
  if other ~= holder and call('HEXISTS', key, other) == 1 and call('PTTL', prefix .. other .. ':rwlock_timeout:1') > 0 then
    lives = true
  end
end
local cursor = '0'
repeat
  local page = lives and {'0', {}} or call('HSCAN', key, cursor, 'COUNT', 16)
  cursor = page[1]
  for n = 1, #page[2], 2 do
    local other, count = page[2][n], tonumber(page[2][n + 1])
    for i = other ~= holder and not lives and count or 0, 1, -1 do
      if call('PTTL', prefix .. other .. ':rwlock_timeout:' .. string.format('%d', i)) > 0 then lives = true end
    end
  end
until lives or cursor == '0'
