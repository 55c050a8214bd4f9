#!lua
-- Acquires Redisson's read-write lock for one acquisition. A repeat with the id of a hold extends the hold.
-- KEYS: the lock, the tokens, the timeout of this id's read hold
-- ARGV: not_after_ms, id, mode ('r' or 'w'), lease_ms
-- Returns 'granted id <time> token 1 remaining_ms 0' | 'contended id <time> retry_in_ms 0 [holder]' | 'late id <time>'
local id, mode, lease_ms = ARGV[2], ARGV[3], ARGV[4] + 0
local RETENTION_MS, MAX_STALE, FOREVER_MS = 60000, 1000, 60000

--@clock
if now_ms > ARGV[1] + 0 then return 'late ' .. id .. ' ' .. time[1] .. ' ' .. time[2] end

local holder = mode == 'w' and id .. ':1:write' or id .. ':1'
local state = call('HMGET', key, 'mode', holder)
local inside, own = state[1], state[2]
local left_ms = inside and call('PTTL', key) or -2
if inside and not own and (mode == 'w' or inside ~= 'read') then
  if left_ms < 1 then left_ms = left_ms == -1 and FOREVER_MS or 1 end -- no client of Redisson writes a key without a ttl
  -- Any field but the mode is a holder. The format has the time of no grant.
  local fields, named = call('HRANDFIELD', key, 2), ''
  local field = fields[1] == 'mode' and fields[2] or fields[1]
  local name = field and (string.match(field, '^(.*):write$') or field)
  local other = name and (string.match(name, '^(%x+%..+):1$') or name)
  if other and not string.find(other, '%s') then
    local kind = inside == 'write' and 'w %.0f 0 1 %s %.0f' or 's %.0f 0 %s %.0f'
    named = ' ' .. string.format(kind, now_ms + left_ms, other, call('HLEN', key) - 1)
  end
  return string.format('contended %s %s %s %.0f 0', id, time[1], time[2], left_ms) .. named
end
-- A hash without the field 'mode' belongs to another program. Redisson would write into it, and let it expire.
if not inside and call('EXISTS', key) == 1 then
  return redis.error_reply('WRONGTYPE the key is a hash that is no read-write lock of Redisson')
end

-- Tokens. Readers of ours that are inside at the same time share one. A member of a time of its own, which is not in the
-- lock any more, belongs to a hold that has ended without a release: by its deadline, or by force.
local scores = call('ZMSCORE', KEYS[2], '#token', '#phase', '#born')
local last, token, stale = 0 - (scores[1] or 0), 0, {}
if own then
  token = mode == 'w' and last or 0 - (scores[2] or 0)
elseif inside then
  while #stale < MAX_STALE do
    local first = call('ZRANGEBYSCORE', KEYS[2], 0, '+inf', 'LIMIT', #stale, 1)[1]
    if not first then break end
    if call('HEXISTS', key, first) == 1 then
      token = 0 - (scores[2] or 0)
      break
    end
    stale[#stale + 1] = first
  end
end
-- A repeat never shortens the hold.
local own_ms = lease_ms
if own then own_ms = math.max(lease_ms, mode == 'w' and left_ms or call('PTTL', KEYS[3])) end

local record = {}
if #stale > 0 then call('ZREM', KEYS[2], unpack(stale)) end
if token == 0 then
  token = math.max(server_us, last + 1)
  record = {string.format('%.0f', -token), '#token'}
  if mode == 'r' then record[3], record[4] = record[1], '#phase' end
end
-- The record begins anew if it does not know the end of a hold that has ended.
if #stale > 0 or not scores[3] then
  record[#record + 1], record[#record + 2] = string.format('%.0f', #stale > 0 and -(last + 1) or -token), '#born'
end
if record[1] or not own then record[#record + 1], record[#record + 2] = string.format('%.0f', now_ms), holder end
if record[1] then call('ZADD', KEYS[2], unpack(record)) end
if not own then call('HSET', key, 'mode', mode == 'w' and 'write' or 'read', holder, 1) end
if mode == 'r' then call('SET', KEYS[3], 1, 'PX', string.format('%.0f', own_ms)) end
--@ttl
return string.format('granted %s %s %s %.0f 1 %.0f 0', id, time[1], time[2], token, own_ms)
