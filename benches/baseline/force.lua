#!lua flags=allow-oom
-- Ends every hold that `inspect` showed, foreign stamps too, and nothing newer. The last token stays, and marks all holds up to it as
-- ended by force. Whoever waits is next. O(readers and waiters), for operators.
-- KEYS: the lock
-- ARGV: last_token, foreign_write_stamp_ms, foreign_read_stamp_ms, as `inspect` answered them; published_read_limit_ms,
--   published_write_limit_ms
-- Returns {'forced', '', server_us, {id, …}}: the holds that were live until now
local key = KEYS[1]
local seen, seen_write, seen_read = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local read_limit_ms, write_limit_ms = ARGV[4], ARGV[5]
local RETENTION_MS = 60000

local time = redis.call('TIME')
local server_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(server_us / 1000)
local all, field = redis.call('HGETALL', key), {}
for i = 1, #all, 2 do field[all[i]] = all[i + 1] end
if tonumber(field.t or 0) > seen then return {'forced', '', server_us, {}} end -- what was seen is over: this copy is late

local ended, gone = {}, {'W', 'D', 'I', 'T', 'a', 'm', 'v', 'o', 'write', 'read'}
if field.W and field.write == field.D and tonumber(field.D) > now_ms then ended[1] = field.W end
for slot = 1, tonumber(field.a or 0) do
  local id = field['r' .. slot]
  if tonumber(field['R' .. id]) > now_ms then ended[#ended + 1] = id end
  for _, name in ipairs({'r' .. slot, 'i' .. slot, 'R' .. id, 's' .. id}) do gone[#gone + 1] = name end
end

-- As in `inspect`. Stamps have no token: one that differs from what was seen has come since, and stays.
local write, read = field.write, field.v
if field.W and field.write == field.D then write = nil end
if field.read ~= field.m then read = field.read or read end
if (tonumber(write) or 0) == seen_write then write = nil end
if (tonumber(read) or 0) == seen_read then read = nil end

local waits = field.N or field.c
if waits then
  for from = 1, #gone, 1000 do redis.call('HDEL', key, unpack(gone, from, math.min(from + 999, #gone))) end
  if field.t then redis.call('HSET', key, 'F', field.t) end
else
  redis.call('UNLINK', key)
  if field.t then redis.call('HSET', key, 't', field.t, 'F', field.t) end
end
if write then redis.call('HSET', key, 'write', write) end
if read then redis.call('HSET', key, 'read', read) end

if waits then
  local last, head, waiting, heard_ms = field.t, field.N, field.c, field.u
  local first, writer, writer_ends, slots, stamp, covered, id, own
  --@queue
  after_writer, touched = field.W, true
  admit()
  finish()
else
  redis.call('PEXPIREAT', key, now_ms + RETENTION_MS)
end
return {'forced', '', server_us, ended}
