-- Looks for another reader that is live: one of its timeouts is there. Dead readers do not keep the lock. The last live one
-- that leaves removes it, as in Redisson.
-- Reads: key, state (its first element is the mode), holder (the field of the reader that leaves); KEYS[2], the tokens; KEYS[3],
-- which ends with holder and ':rwlock_timeout:1'
-- Sets: lives_ms, how long such a reader is live yet, or 0; if none is of this crate, the longest time of all
local prefix = string.sub(KEYS[3], 1, -18 - #holder)
local lives_ms, cursor = state[1] == 'read' and 0 or 1, '0'
if call('HLEN', key) > 2 then
  -- First the readers of this crate, which are found without a walk.
  for _, other in ipairs(call('ZRANGEBYSCORE', KEYS[2], 0, '+inf', 'LIMIT', 0, 2)) do
    if other ~= holder and call('HEXISTS', key, other) == 1 then
      lives_ms = math.max(lives_ms, call('PTTL', prefix .. other .. ':rwlock_timeout:1'))
    end
  end
  repeat
    local page = lives_ms > 0 and cursor == '0' and {'0', {}} or call('HSCAN', key, cursor, 'COUNT', 64)
    cursor = page[1]
    for n = 1, #page[2], 2 do
      local other = page[2][n]
      for i = other ~= holder and tonumber(page[2][n + 1]) or 0, 1, -1 do
        lives_ms = math.max(lives_ms, call('PTTL', prefix .. other .. ':rwlock_timeout:' .. string.format('%d', i)))
      end
    end
  until cursor == '0'
end
