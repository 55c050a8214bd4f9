#!lua flags=allow-oom
-- Ends the hold of one acquisition: release and cancel alike.
-- KEYS: the lock
-- ARGV: id
-- Returns {'held', id, server_us} if it was live until now | {'none', id, server_us, forced_token}
local key, id = KEYS[1], ARGV[1]
local RETENTION_MS = 60000

local time = redis.call('TIME')
local server_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(server_us / 1000)
local writer, writer_ends, write, read, slots, stamp, covered, overrun, forced, own, slot =
  unpack(redis.call('HMGET', key, 'W', 'D', 'write', 'read', 'a', 'm', 'v', 'o', 'F', 'R' .. id, 's' .. id))
local held = false

if writer == id then
  if write == writer_ends then
    held = tonumber(writer_ends) > now_ms
    redis.call('HDEL', key, 'W', 'D', 'I', 'write')
  else -- somebody else's stamp, or none: not ours to the end, and not ours to delete
    redis.call('HDEL', key, 'W', 'D', 'I')
  end
  redis.call('PEXPIREAT', key, now_ms + RETENTION_MS)
elseif own then
  held = tonumber(own) > now_ms and not write -- a `write` beside our readers is an intruder's
  if held and overrun then held = tonumber(redis.call('HGET', key, 'i' .. slot)) >= tonumber(overrun) end
  if slots == '1' then
    if read == stamp and not covered then
      redis.call('HDEL', key, 'a', 'm', 'o', 'r1', 'i1', 'R' .. id, 's' .. id, 'read')
    else
      redis.call('HDEL', key, 'a', 'm', 'o', 'r1', 'i1', 'R' .. id, 's' .. id, 'v')
      -- The covered foreign reader may still be inside: its stamp comes back, unless a newer one stands there.
      if covered and (not read or read == stamp) then redis.call('HSET', key, 'read', covered) end
    end
    redis.call('PEXPIREAT', key, now_ms + RETENTION_MS)
  else
    if slot == slots then
      redis.call('HSET', key, 'a', slots - 1)
    else -- the last reader moves into the gap
      local moved = redis.call('HMGET', key, 'r' .. slots, 'i' .. slots)
      redis.call('HSET', key, 'a', slots - 1, 'r' .. slot, moved[1], 'i' .. slot, moved[2], 's' .. moved[1], slot)
    end
    redis.call('HDEL', key, 'r' .. slots, 'i' .. slots, 'R' .. id, 's' .. id)
    redis.call('PEXPIREAT', key, stamp + RETENTION_MS)
  end
else -- NX: only a key that lost its ttl gets one here
  redis.call('PEXPIREAT', key, math.max(now_ms, writer_ends or 0, stamp or 0) + RETENTION_MS, 'NX')
end

if held then return {'held', id, server_us} end
return {'none', id, server_us, tonumber(forced or 0)}
