#!lua flags=allow-oom
-- Extends the hold of one acquisition. It never shortens a hold, and never brings back a lost one. A hold is there while its
-- field is in the lock, whatever time a client of Redisson has left the key.
-- KEYS: the lock, the tokens, the timeout of this id's read hold
-- ARGV: id, lease_ms
-- Returns 'renewed id <time> remaining_ms' | 'lost id <time> forced_token'
local call, key = redis.call, KEYS[1]
local id, own_ms = ARGV[1], ARGV[2] + 0
local RETENTION_MS = 60000

local time = call('TIME')
local state = call('HMGET', key, id .. ':1', id .. ':1:write')
if not (state[1] or state[2]) then
  local forced = 0 - (call('ZMSCORE', KEYS[2], '#forced')[1] or 0)
  return string.format('lost %s %s %s %.0f', id, time[1], time[2], forced)
end
local left_ms = call('PTTL', key)
own_ms = math.max(own_ms, state[2] and left_ms or call('PTTL', KEYS[3]))
if state[1] then call('SET', KEYS[3], 1, 'PX', string.format('%.0f', own_ms)) end
left_ms = math.max(left_ms, own_ms)
call('PEXPIRE', key, string.format('%.0f', left_ms))
call('PEXPIRE', KEYS[2], string.format('%.0f', left_ms + RETENTION_MS))
return string.format('renewed %s %s %s %.0f', id, time[1], time[2], own_ms)
