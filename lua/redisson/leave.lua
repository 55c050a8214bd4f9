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
local message, is_free = nil, true
if state[3] then
  if call('HLEN', key) > 2 then -- Redisson could have left a reader's field there
    call('HDEL', key, writer)
    call('HSET', key, 'mode', 'read')
    call('ZREM', KEYS[2], writer)
    is_free = false
  else
    call('DEL', key)
  end
  message = '1'
elseif state[2] then
  --@others
  if lives_ms > 0 then
    -- A watchdog of Redisson may have cut the time of the lock below that of another reader.
    if lives_ms > call('PTTL', key) then call('PEXPIRE', key, string.format('%.0f', lives_ms)) end
    call('HDEL', key, holder)
    call('DEL', KEYS[3])
    call('ZREM', KEYS[2], holder)
    is_free = false
  else
    call('DEL', key, KEYS[3])
    message = '0'
  end
else
  local scores = call('ZMSCORE', KEYS[2], '#forced', '#token', '#born', holder, writer)
  local first, last = 0 - (scores[3] or 0), 0 - (scores[2] or 0)
  if scores[4] or scores[5] then -- the hold has ended without a release, which a repeat has to learn, too
    call('ZREM', KEYS[2], holder, writer)
    call('ZADD', KEYS[2], string.format('%.0f', -(last + 1)), '#born')
    first, last = 0, 0
  end
  return string.format('none %s %s %s %.0f %.0f %.0f', id, time[1], time[2], 0 - (scores[1] or 0), last, first)
end
-- At a free lock, other members belong to holds that have ended without a release, so the record begins anew.
if is_free and call('ZREMRANGEBYSCORE', KEYS[2], 0, '+inf') > 1 then
  local last = 0 - (call('ZMSCORE', KEYS[2], '#token')[1] or 0)
  call('ZADD', KEYS[2], string.format('%.0f', -(last + 1)), '#born')
end
--@publish
return 'held ' .. id .. ' ' .. time[1] .. ' ' .. time[2] .. unpublished
