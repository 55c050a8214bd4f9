#!lua flags=allow-oom
-- Ends every hold that `inspect` showed, foreign stamps too, and nothing newer. The last token stays, and marks all holds up to it as
-- ended by force. O(readers), for operators.
-- KEYS: the lock
-- ARGV: last_token, foreign_write_stamp_ms, foreign_read_stamp_ms, as `inspect` answered them
-- Returns {'forced', '', server_us, {id, …}}: the holds that were live until now
local key = KEYS[1]
local seen, seen_write, seen_read = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local RETENTION_MS = 60000

local time = redis.call('TIME')
local server_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(server_us / 1000)
local all, field = redis.call('HGETALL', key), {}
for i = 1, #all, 2 do field[all[i]] = all[i + 1] end
if tonumber(field.t or 0) > seen then return {'forced', '', server_us, {}} end -- what was seen is over: this copy is late

local ended = {}
if field.W and field.write == field.D and tonumber(field.D) > now_ms then ended[1] = field.W end
for slot = 1, tonumber(field.a or 0) do
  local id = field['r' .. slot]
  if tonumber(field['R' .. id]) > now_ms then ended[#ended + 1] = id end
end

-- As in `inspect`. Stamps have no token: one that differs from what was seen has come since, and stays.
local foreign_write, foreign_read = field.write, field.v
if field.W and field.write == field.D then foreign_write = nil end
if field.read ~= field.m then foreign_read = field.read or foreign_read end
local function newer(stamp, seen_stamp) return stamp and (tonumber(stamp) or 0) ~= seen_stamp end

redis.call('UNLINK', key)
if field.t then redis.call('HSET', key, 't', field.t, 'F', field.t) end
if newer(foreign_write, seen_write) then redis.call('HSET', key, 'write', foreign_write) end
if newer(foreign_read, seen_read) then redis.call('HSET', key, 'read', foreign_read) end
redis.call('PEXPIREAT', key, now_ms + RETENTION_MS)
return {'forced', '', server_us, ended}
