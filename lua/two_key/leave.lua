#!lua flags=allow-oom
-- Ends the hold of one acquisition: release and cancel alike. Publishes its id when the lock became takeable by it.
-- KEYS: the readers (zset), the writer (string)
-- ARGV: id, channel
-- Returns {'held', id, server_us} if it was live until now | {'none', id, server_us, forced_token}
local read_key, write_key = KEYS[1], KEYS[2]
local id, channel = ARGV[1], ARGV[2]
local RETENTION_MS = 60000

local time = redis.call('TIME')
local server_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(server_us / 1000)
local writer = redis.call('GET', write_key)
local scores = redis.call('ZMSCORE', read_key, '#forced', id)
local longest = redis.call('ZREVRANGE', read_key, 0, 1, 'WITHSCORES')
local others_ms = math.max(now_ms, longest[1] ~= id and longest[2] or longest[4] or 0) -- now: no other reader is live
local own_ms = tonumber(scores[2] or 0)

if writer and string.sub(writer, 1, #id + 1) == id .. ' ' then
  local writer_ms = redis.call('PEXPIRETIME', write_key)
  redis.call('DEL', write_key)
  redis.call('PEXPIREAT', read_key, others_ms + RETENTION_MS)
  if writer_ms < 0 or writer_ms > now_ms then -- else dead, and the server was yet to remove it
    redis.pcall('SPUBLISH', channel, id) -- last, and its failure is nobody's: waiters retry anyway
    return {'held', id, server_us}
  end
end
if scores[2] then
  redis.call('ZREM', read_key, id, '@' .. id)
  redis.call('PEXPIREAT', read_key, others_ms + RETENTION_MS)
  if own_ms > now_ms then
    if others_ms == now_ms then redis.pcall('SPUBLISH', channel, id) end
    return {'held', id, server_us}
  end
end
-- NX: only a key that lost its ttl gets one here.
redis.call('PEXPIREAT', write_key, now_ms + RETENTION_MS, 'NX')
redis.call('PEXPIREAT', read_key, math.max(others_ms, redis.call('PEXPIRETIME', write_key)) + RETENTION_MS, 'NX')
return {'none', id, server_us, -(scores[1] or 0)}
