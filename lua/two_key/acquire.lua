#!lua
-- Takes the lock for one acquisition, or tells when to ask again. A repeat with the id of a live hold extends it.
-- KEYS: the readers (zset), the writer (string)
-- ARGV: not_after_ms, id, mode ('r' or 'w'), lease_ms
-- Returns {'granted', id, server_us, token, 1, remaining_ms, 0} | {'contended', id, server_us, retry_in_ms} | {'late', id, server_us}
local read_key, write_key = KEYS[1], KEYS[2]
local not_after_ms, id, mode, lease_ms = tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4]
local RETENTION_MS, MOST_POPS = 60000, 100

local time = redis.call('TIME')
local server_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(server_us / 1000)
if now_ms > not_after_ms then return {'late', id, server_us} end

-- Both keys are read before anything is written: a key of another type ends the script here.
local writer = redis.call('GET', write_key)
local scores = redis.call('ZMSCORE', read_key, '#token', id)
local longest = redis.call('ZREVRANGE', read_key, 0, 0, 'WITHSCORES')
local last = -(scores[1] or 0)
local longest_ms = tonumber(longest[2] or 0) -- up to now: no live reader; not above 0: no reader at all
local deadline_ms = now_ms + lease_ms

local writer_ms = writer and redis.call('PEXPIRETIME', write_key)
if writer and writer_ms >= 0 and writer_ms <= now_ms then -- dead, and the server is yet to remove it
  redis.call('DEL', write_key)
elseif writer then
  if mode == 'w' and string.sub(writer, 1, #id + 1) == id .. ' ' then
    deadline_ms = math.max(deadline_ms, writer_ms)
    redis.call('PEXPIREAT', write_key, deadline_ms)
    redis.call('PEXPIREAT', read_key, deadline_ms + RETENTION_MS)
    return {'granted', id, server_us, tonumber(string.match(writer, '%d+$')), 1, deadline_ms - now_ms, 0}
  end
  if writer_ms < 0 then -- it lost its ttl and would block for ever; its own lease is not known here, so not less than this
    writer_ms = math.max(deadline_ms, now_ms + RETENTION_MS)
    redis.call('PEXPIREAT', write_key, writer_ms)
  end
  redis.call('PEXPIREAT', read_key, math.max(writer_ms, longest_ms) + RETENTION_MS, 'NX') -- the same for the other key
  return {'contended', id, server_us, math.max(1, writer_ms - now_ms)}
end
if mode == 'w' and longest_ms > now_ms then
  redis.call('PEXPIREAT', read_key, longest_ms + RETENTION_MS, 'NX')
  return {'contended', id, server_us, longest_ms - now_ms}
end

if longest_ms > 0 then
  for _, dead in ipairs(redis.call('ZRANGEBYSCORE', read_key, 0, now_ms, 'LIMIT', 0, MOST_POPS)) do
    redis.call('ZREM', read_key, dead, '@' .. dead)
  end
end
local token = math.max(server_us, last + 1)
if mode == 'w' then
  -- %.0f: concatenation would round a microsecond number to 14 digits.
  redis.call('SET', write_key, string.format('%s %.0f %.0f', id, now_ms, token), 'PXAT', deadline_ms)
  redis.call('ZADD', read_key, -token, '#token')
elseif longest_ms <= now_ms then
  redis.call('ZADD', read_key, -token, '#token', deadline_ms, id, -now_ms, '@' .. id)
else
  token = last
  local own_ms = tonumber(scores[2] or 0)
  if own_ms > now_ms then
    deadline_ms = math.max(deadline_ms, own_ms)
    redis.call('ZADD', read_key, deadline_ms, id)
  else
    redis.call('ZADD', read_key, deadline_ms, id, -now_ms, '@' .. id)
  end
end
redis.call('PEXPIREAT', read_key, math.max(deadline_ms, longest_ms) + RETENTION_MS)
return {'granted', id, server_us, token, 1, deadline_ms - now_ms, 0}
