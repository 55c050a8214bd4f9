#!lua flags=allow-oom
-- Ends every hold that `inspect` showed, and nothing newer. The last token stays, and marks all holds up to it as ended by force.
-- O(readers), for operators.
-- KEYS: the readers (zset), the writer (string)
-- ARGV: last_token, 0, 0, as `inspect` answered them, channel
-- Returns {'forced', '', server_us, {id, …}}: the holds that were live until now
local read_key, write_key = KEYS[1], KEYS[2]
local seen, channel = tonumber(ARGV[1]), ARGV[4]
local RETENTION_MS = 60000

local time = redis.call('TIME')
local server_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(server_us / 1000)
local writer = redis.call('GET', write_key)
local last = redis.call('ZSCORE', read_key, '#token')
if -(last or 0) > seen then return {'forced', '', server_us, {}} end -- what was seen is over: this copy is late
local ended = redis.call('ZRANGEBYSCORE', read_key, now_ms + 1, '+inf')
local writer_ms = writer and redis.call('PEXPIRETIME', write_key)
if writer and (writer_ms < 0 or writer_ms > now_ms) then -- else dead, and the server is yet to remove it
  ended[#ended + 1] = string.match(writer, '^(%S+) %d+ %d+$')
end

redis.call('UNLINK', read_key, write_key)
if last then
  redis.call('ZADD', read_key, last, '#token', last, '#forced')
  redis.call('PEXPIREAT', read_key, now_ms + RETENTION_MS)
end
redis.pcall('SPUBLISH', channel, '') -- last, and its failure is nobody's: waiters retry anyway
return {'forced', '', server_us, ended}
