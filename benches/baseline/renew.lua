#!lua flags=allow-oom
-- Extends the live hold of one acquisition. Never shortens it, never brings back what is lost. Lets nobody in: whoever is next asks.
-- KEYS: the lock
-- ARGV: id, lease_ms
-- Returns {'renewed', id, server_us, remaining_ms} | {'lost', id, server_us, forced_token}
local key, id, lease_ms = KEYS[1], ARGV[1], ARGV[2]
local RETENTION_MS = 60000

local time = redis.call('TIME')
local server_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(server_us / 1000)
local writer, writer_ends, write, read, stamp, covered, heard_ms, overrun, forced, own, slot =
  unpack(redis.call('HMGET', key, 'W', 'D', 'write', 'read', 'm', 'v', 'u', 'o', 'F', 'R' .. id, 's' .. id))
local deadline_ms = now_ms + lease_ms

if writer == id then
  if write == writer_ends and tonumber(writer_ends) > now_ms then
    deadline_ms = math.max(deadline_ms, writer_ends)
    redis.call('HSET', key, 'D', deadline_ms, 'write', deadline_ms)
    redis.call('PEXPIREAT', key, math.max(deadline_ms, heard_ms or 0) + RETENTION_MS)
    return {'renewed', id, server_us, deadline_ms - now_ms}
  end
  -- Dead from now on, and replaced like any dead writer, after whom the readers have their turn.
  redis.call('HSET', key, 'D', 0)
  if write == writer_ends then redis.call('HDEL', key, 'write') end -- another value is somebody else's
elseif own then
  overrun = overrun and tonumber(redis.call('HGET', key, 'i' .. slot)) < tonumber(overrun)
  if tonumber(own) > now_ms and not write and not overrun then
    deadline_ms = math.max(deadline_ms, own)
    local stamp_ms = math.max(deadline_ms, stamp)
    if read and read ~= stamp then -- a foreign reader overwrote our stamp: cover its own, else its release uncovers us
      covered = math.max(read, covered or 0)
      redis.call('HSET', key, 'v', covered)
    end
    if covered then stamp_ms = math.max(stamp_ms, covered + 1) end
    redis.call('HSET', key, 'R' .. id, deadline_ms, 'm', stamp_ms, 'read', stamp_ms)
    redis.call('PEXPIREAT', key, math.max(stamp_ms, heard_ms or 0) + RETENTION_MS)
    return {'renewed', id, server_us, deadline_ms - now_ms}
  end
  -- Dead, or an intruder's `write` stands or stood beside it: dead from now on, and removed like any dead reader.
  redis.call('HSET', key, 'R' .. id, 0)
end

-- NX: only a key that lost its ttl gets one here.
redis.call('PEXPIREAT', key, math.max(now_ms, writer_ends or 0, stamp or 0, heard_ms or 0) + RETENTION_MS, 'NX')
return {'lost', id, server_us, tonumber(forced or 0)}
