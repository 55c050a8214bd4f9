#!lua flags=allow-oom
-- Extends the live hold of one acquisition. It never shortens a hold, and never brings back a lost one.
-- KEYS: the readers (zset), the writer (string)
-- ARGV: id, lease_ms; for a writer's hold that is to last until a given time at least: 'u', until_ms
-- Returns 'renewed id <time> remaining_ms' | 'lost id <time> forced_token'
local call, read_key, write_key = redis.call, KEYS[1], KEYS[2]
local id, lease_ms = ARGV[1], ARGV[2]
local RETENTION_MS = 60000

local time = call('TIME')
local now_ms = math.floor((time[1] * 1000000 + time[2]) / 1000)
local writer = call('GET', write_key)
local scores = call('ZMSCORE', read_key, '#forced', id, '#waits', '#token')
local longest = call('ZREVRANGE', read_key, 0, 0, 'WITHSCORES')
local longest_ms = math.max(now_ms, (longest[2] or 0) + 0, -(scores[3] or 0)) -- of readers and of waiters
local own_ms = tonumber(scores[2] or 0)
local deadline_ms = now_ms + lease_ms
-- A force has ended all holds of this token, even if this hold is not removed yet.
if scores[1] and scores[1] == scores[4] then own_ms = 0 end

if writer and string.sub(writer, 1, #id + 1) == id .. ' ' then
  local writer_ms = call('PEXPIRETIME', write_key)
  if writer_ms < 0 or writer_ms > now_ms then
    deadline_ms = math.max(deadline_ms, writer_ms, tonumber(ARGV[4] or 0)) -- a key that lost its ttl (-1) gets the lease
    call('PEXPIREAT', write_key, deadline_ms)
    --@renewed
  end
  call('DEL', write_key) -- dead, but the server has not removed it yet
end
if own_ms > now_ms then
  deadline_ms = math.max(deadline_ms, own_ms)
  call('ZADD', read_key, deadline_ms, id)
  --@renewed
end
-- NX: only a key that lost its ttl gets a ttl here.
call('PEXPIREAT', write_key, math.max(deadline_ms, now_ms + RETENTION_MS), 'NX')
call('PEXPIREAT', read_key, math.max(longest_ms, call('PEXPIRETIME', write_key)) + RETENTION_MS, 'NX')
return string.format('lost %s %s %s %.0f', id, time[1], time[2], 0 - (scores[1] or 0))
