#!lua flags=allow-oom
-- Releases the hold of one acquisition.
-- KEYS: the lock, the tokens, the timeout of this id's read hold
-- ARGV: id
-- Returns 'held id <time>' | 'none id <time> forced_token last_token first_token'
local call, key = redis.call, KEYS[1]
local id = ARGV[1]

local time = call('TIME')
local holder, writer = id .. ':1', id .. ':1:write'
local state = call('HMGET', key, 'mode', holder, writer)
local message
if state[3] then
  call('HDEL', key, writer)
  if call('HLEN', key) > 1 then call('HSET', key, 'mode', 'read') else call('DEL', key) end
  message = '1'
elseif state[2] then
  --@others
  if lives_ms > 0 then
    -- A watchdog of Redisson may have cut the time of the lock below that of another reader.
    if lives_ms > call('PTTL', key) then call('PEXPIRE', key, string.format('%.0f', lives_ms)) end
    call('HDEL', key, holder)
  else
    call('DEL', key)
    message = '0'
  end
  call('DEL', KEYS[3])
else
  local scores = call('ZMSCORE', KEYS[2], '#forced', '#token', '#born', holder, writer)
  local first, last = 0 - (scores[3] or 0), 0 - (scores[2] or 0)
  if scores[4] or scores[5] then -- the hold has ended without a release
    call('ZREM', KEYS[2], holder, writer)
    first, last = 0, 0
  end
  return string.format('none %s %s %s %.0f %.0f %.0f', id, time[1], time[2], 0 - (scores[1] or 0), last, first)
end
call('ZREM', KEYS[2], holder, writer)
--@publish
return 'held ' .. id .. ' ' .. time[1] .. ' ' .. time[2] .. unpublished
