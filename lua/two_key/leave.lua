#!lua flags=allow-oom
-- Ends the hold or the waiting of one acquisition: release and cancel alike. The next waiter gets a notification, and asks again.
-- KEYS: the readers (zset), the writer (string)
-- ARGV: id
-- Returns 'held id <time>' or 'queued id <time>' if it was live until now | 'none id <time> forced_token last_token first_token'
local read_key, write_key, id = KEYS[1], KEYS[2], ARGV[1]
local RETENTION_MS = 60000

local time = redis.call('TIME')
local server_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(server_us / 1000)
local writer = redis.call('GET', write_key)
local scores = redis.call('ZMSCORE', read_key, '#forced', id, '#waits', '#u ' .. id, '#token', '#born')
local longest = redis.call('ZREVRANGE', read_key, 0, 1, 'WITHSCORES')
local others_ms = math.max(now_ms, longest[1] ~= id and longest[2] or longest[4] or 0) -- now: no other reader is live
local own_ms, waits_ms = tonumber(scores[2] or 0), -(scores[3] or 0)
local own_writer = writer and string.sub(writer, 1, #id + 1) == id .. ' '
local left, writer_left, wrote = 'none', false, false

if own_writer then
  local writer_ms = redis.call('PEXPIRETIME', write_key)
  redis.call('DEL', write_key)
  wrote, writer_left = true, writer_ms < 0 or writer_ms > now_ms -- else dead, and the server was yet to remove it
  if writer_left then left = 'held' end
end
if scores[1] and scores[1] == scores[5] then own_ms = 0 end -- a force has ended it, and was yet to remove it
if scores[2] and not writer_left then
  redis.call('ZREM', read_key, id, '@' .. id)
  wrote = true
  if own_ms > now_ms then left = 'held' end
end
if wrote then
  local last_ms = math.max(others_ms, waits_ms)
  if writer and not own_writer then last_ms = math.max(last_ms, redis.call('PEXPIRETIME', write_key)) end -- a dead reader leaves late
  redis.call('PEXPIREAT', read_key, last_ms + RETENTION_MS)
end

if scores[3] then
  --@queue
  if scores[4] then
    redis.call('ZREM', read_key, '#w ' .. id, '#r ' .. id, '#u ' .. id)
    if left == 'none' and -scores[4] - HEARD > now_ms then left = 'queued' end
  end
  local beside_readers = others_ms > now_ms
  local can_enter = left == 'queued' or left == 'held' and not beside_readers
  if can_enter and writer and not own_writer then
    local writer_ms = redis.call('PEXPIRETIME', write_key)
    can_enter = writer_ms >= 0 and writer_ms <= now_ms
  end
  if can_enter then wake(writer_left, beside_readers) end
  publish()
end
if left == 'held' then return 'held ' .. id .. ' ' .. time[1] .. ' ' .. time[2] end
-- NX: only a key that lost its ttl gets one here.
redis.call('PEXPIREAT', write_key, now_ms + RETENTION_MS, 'NX')
redis.call('PEXPIREAT', read_key, math.max(others_ms, redis.call('PEXPIRETIME', write_key)) + RETENTION_MS, 'NX')
if left == 'queued' then return 'queued ' .. id .. ' ' .. time[1] .. ' ' .. time[2] end
return string.format('none %s %s %s %.0f %.0f %.0f', id, time[1], time[2], 0 - (scores[1] or 0), 0 - (scores[5] or 0), 0 - (scores[6] or 0))
