#!lua flags=allow-oom
-- Ends every hold, foreign stamps too. The last token stays, and marks all holds up to it as ended by force. O(readers), for operators.
-- KEYS: the lock
-- ARGV: none
-- Returns {'forced', '', server_us, {id, …}}: the holds that were live until now
local key = KEYS[1]
local RETENTION_MS = 60000

local time = redis.call('TIME')
local server_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(server_us / 1000)
local all, field = redis.call('HGETALL', key), {}
for i = 1, #all, 2 do field[all[i]] = all[i + 1] end

local ended = {}
if field.W and field.write == field.D and tonumber(field.D) > now_ms then ended[1] = field.W end
for slot = 1, tonumber(field.a or 0) do
  local id = field['r' .. slot]
  if tonumber(field['R' .. id]) > now_ms then ended[#ended + 1] = id end
end

redis.call('UNLINK', key)
if field.t then
  redis.call('HSET', key, 't', field.t, 'F', field.t)
  redis.call('PEXPIREAT', key, now_ms + RETENTION_MS)
end
return {'forced', '', server_us, ended}
