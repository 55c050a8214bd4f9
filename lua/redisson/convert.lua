#!lua
-- Converts a hold of one mode into a hold of the other mode, in one step. A reader becomes a writer only if no other reader
-- is live. Redisson has no such step. It finds the lock in a state that its own clients could have left.
-- KEYS: the lock, the tokens, the timeout of the old id's read hold, the timeout of the new id's
-- ARGV: not_after_ms, old id, new id, new mode ('r' or 'w'), lease_ms
-- Returns 'granted id <time> token 1 remaining_ms 0' | 'refused id <time>' | 'lost id <time> forced_token' | 'late id <time>'
local id, mode, lease_ms = ARGV[3], ARGV[4], ARGV[5] + 0
local RETENTION_MS = 60000

--@clock
local words = id .. ' ' .. time[1] .. ' ' .. time[2]
if now_ms > ARGV[1] + 0 then return 'late ' .. words end

local is_writer = mode == 'w'
local holder = ARGV[2] .. (is_writer and ':1' or ':1:write')
local new = id .. (is_writer and ':1:write' or ':1')
local state = call('HMGET', key, 'mode', holder, new)
local left_ms = call('PTTL', key)
local scores = call('ZMSCORE', KEYS[2], '#token', '#phase', '#forced')
local last, message = 0 - (scores[1] or 0), nil
local token, own_ms = 0, lease_ms
if state[3] then -- a repeat
  token = is_writer and last or 0 - (scores[2] or 0)
  own_ms = math.max(lease_ms, is_writer and left_ms or call('PTTL', KEYS[4]))
elseif not state[2] then
  return string.format('lost %s %.0f', words, 0 - (scores[3] or 0))
elseif is_writer then
  --@others
  if lives_ms > 0 then return 'refused ' .. words end
  -- Dead readers go as at a release.
  call('DEL', key, KEYS[3])
  left_ms = -2
else
  call('HDEL', key, holder)
  message = '1' -- Redisson does not publish here, and its waiting readers would sleep on
end
if token == 0 then
  token = math.max(server_us, last + 1)
  call('ZADD', KEYS[2], string.format('%.0f', -token), '#token')
  if not is_writer then call('ZADD', KEYS[2], string.format('%.0f', -token), '#phase') end
end
if not state[3] then
  call('ZREM', KEYS[2], holder)
  call('ZADD', KEYS[2], string.format('%.0f', now_ms), new)
  call('HSET', key, 'mode', is_writer and 'write' or 'read', new, 1)
end
if not is_writer then call('SET', KEYS[4], 1, 'PX', string.format('%.0f', own_ms)) end
--@ttl
--@publish
return string.format('granted %s %.0f 1 %.0f 0%s', words, token, own_ms, unpublished)
