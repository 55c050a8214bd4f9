#!lua flags=allow-oom
-- Ends the hold of one acquisition, or its waiting: release and cancel alike. Whoever is next is let in.
-- KEYS: the lock
-- ARGV: id, published_read_limit_ms, published_write_limit_ms
-- Returns {'held', id, server_us} if it was live until now | {'queued', id, server_us} if it waited | {'none', id, server_us, forced_token}
local key, id, read_limit_ms, write_limit_ms = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local RETENTION_MS = 60000

local time = redis.call('TIME')
local server_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(server_us / 1000)
local last, writer, writer_ends, write, read, head, tail, waiting =
  unpack(redis.call('HMGET', key, 't', 'W', 'D', 'write', 'read', 'N', 'P', 'c'))
local live_writer = writer == id and write == writer_ends and tonumber(writer_ends) > now_ms

-- Two short ways, which come to what the long way below does: a writer leaves an empty queue, or to the only one who waits.
if live_writer and not (head or waiting) then
  redis.call('HDEL', key, 'W', 'D', 'I', 'T', 'write')
  redis.call('PEXPIREAT', key, now_ms + RETENTION_MS)
  return {'held', id, server_us}
end
if live_writer and head == tail and not (waiting or read) then
  local AHEAD_US, MOST_TURNS = 1000000, 64
  local heard, claim_ms, turns = unpack(redis.call('HMGET', key, 'U' .. head, 'C' .. head, 'B' .. head))
  if tonumber(heard) > now_ms then
    local deadline_ms, token = now_ms + claim_ms, math.max(server_us, last + 1)
    turns = math.max(1, math.min(server_us + AHEAD_US - token, tonumber(turns), MOST_TURNS))
    redis.call('HSET', key, 't', token + turns - 1, 'T', token, 'W', head, 'D', deadline_ms, 'I', now_ms, 'write', deadline_ms)
    redis.call('HDEL', key, 'U' .. head, 'C' .. head, 'S' .. head, 'B' .. head, 'N' .. head, 'P' .. head, 'N', 'P', 'u')
    redis.call('PEXPIREAT', key, deadline_ms + RETENTION_MS)
    redis.pcall('SPUBLISH', string.sub(key, 1, -5) .. 'wake:' .. string.sub(head, 1, 32),
      string.format('%s %.0f %.0f %.0f %.0f 0', head, token, turns, deadline_ms, server_us))
    return {'held', id, server_us}
  end
end

local first, slots, stamp, covered, heard_ms, own, slot, overrun, forced =
  unpack(redis.call('HMGET', key, 'T', 'a', 'm', 'v', 'u', 'R' .. id, 's' .. id, 'o', 'F'))
local left, ends_ms, wrote, was_writer = 'none', now_ms, writer == id or own, writer == id

if writer == id then
  if write == writer_ends then
    if tonumber(writer_ends) > now_ms then left = 'held' end
    redis.call('HDEL', key, 'W', 'D', 'I', 'T', 'write')
    write = nil
  else -- somebody else's stamp, or none: not ours to the end, and not ours to delete
    redis.call('HDEL', key, 'W', 'D', 'I', 'T')
  end
  writer, writer_ends = nil, nil
elseif own then
  if tonumber(own) > now_ms and not write then left = 'held' end -- a `write` beside our readers is an intruder's
  if overrun and tonumber(redis.call('HGET', key, 'i' .. slot)) < tonumber(overrun) then left = 'none' end
  if slots == '1' then
    if read == stamp and not covered then
      redis.call('HDEL', key, 'a', 'm', 'o', 'r1', 'i1', 'R' .. id, 's' .. id, 'read')
      read = nil
    else
      redis.call('HDEL', key, 'a', 'm', 'o', 'r1', 'i1', 'R' .. id, 's' .. id, 'v')
      -- The covered foreign reader may still be inside: its stamp comes back, unless a newer one stands there.
      if covered and (not read or read == stamp) then
        redis.call('HSET', key, 'read', covered)
        read = covered
      end
    end
    slots, stamp, covered = nil, nil, nil
  else
    if slot == slots then
      redis.call('HSET', key, 'a', slots - 1)
    else -- the last reader moves into the gap
      local moved = redis.call('HMGET', key, 'r' .. slots, 'i' .. slots)
      redis.call('HSET', key, 'a', slots - 1, 'r' .. slot, moved[1], 'i' .. slot, moved[2], 's' .. moved[1], slot)
    end
    redis.call('HDEL', key, 'r' .. slots, 'i' .. slots, 'R' .. id, 's' .. id)
    slots, ends_ms = slots - 1, stamp
  end
  own = nil
else
  ends_ms = math.max(now_ms, writer_ends or 0, stamp or 0)
end

if not (head or waiting) then
  if wrote then
    redis.call('PEXPIREAT', key, ends_ms + RETENTION_MS)
  else -- NX: only a key that lost its ttl gets one here
    redis.call('PEXPIREAT', key, ends_ms + RETENTION_MS, 'NX')
  end
else
  --@queue
  touched = wrote
  if was_writer then after_writer = true end
  if left == 'none' then
    local heard, place, next, prev = unpack(redis.call('HMGET', key, 'U' .. id, 'Q' .. id, 'N' .. id, 'P' .. id))
    if heard then
      if tonumber(heard) > now_ms then left = 'queued' end
      dequeue(id, place, next, prev)
    end
  end
  admit()
  finish()
end

if left == 'none' then return {'none', id, server_us, tonumber(forced or 0)} end
return {left, id, server_us}
