#!lua
-- Takes the lock for one acquisition, or tells when to ask again. A repeat with the id of a live hold extends it.
-- KEYS: the lock
-- ARGV: not_after_ms, id, mode ('r' or 'w'), lease_ms, published_read_limit_ms, published_write_limit_ms
-- Returns {'granted', id, server_us, token, remaining_ms} | {'contended', id, server_us, retry_in_ms} | {'late', id, server_us}
local key = KEYS[1]
local not_after_ms, id, mode, lease_ms = tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4]
local read_limit_ms, write_limit_ms = ARGV[5], ARGV[6]
local RETENTION_MS, MOST_POPS, FEW = 60000, 100, 8

local time = redis.call('TIME')
local server_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(server_us / 1000)
if now_ms > not_after_ms then return {'late', id, server_us} end

local last, writer, writer_ends, write, read, slots, stamp, covered, own =
  unpack(redis.call('HMGET', key, 't', 'W', 'D', 'write', 'read', 'a', 'm', 'v', 'R' .. id))
local token = math.max(server_us, (last or 0) + 1)
local deadline_ms = now_ms + lease_ms
local stamp_ms = deadline_ms
local pick, moved, moved_since_ms
if not (writer or write or read or slots) then
  slots = 0 -- free, and nothing foreign: straight to the grant
else
  local function contended(free_ms)
    -- NX: only a key that lost its ttl gets one here; `stamp` covers every reader.
    redis.call('PEXPIREAT', key, math.max(free_ms, stamp or 0) + RETENTION_MS, 'NX')
    return {'contended', id, server_us, math.max(1, free_ms - now_ms)}
  end

  local writer_ms = tonumber(writer_ends or 0)
  if writer_ms > now_ms then
    if writer ~= id or mode ~= 'w' then return contended(writer_ms) end
    if write == writer_ends then
      deadline_ms = math.max(deadline_ms, writer_ms)
      redis.call('HSET', key, 'D', deadline_ms, 'write', deadline_ms)
      redis.call('PEXPIREAT', key, deadline_ms + RETENTION_MS)
      return {'granted', id, server_us, tonumber(last), deadline_ms - now_ms}
    end -- else our stamp is gone: somebody may have been inside, so this is a new acquisition
  end
  if write and write ~= writer_ends and write + write_limit_ms > now_ms then return contended(write + write_limit_ms) end
  local foreign = read and read ~= stamp and read + read_limit_ms > now_ms
  if mode == 'w' then
    if foreign then return contended(read + read_limit_ms) end
    if covered and covered + read_limit_ms > now_ms then return contended(covered + read_limit_ms) end
  end

  -- Dead readers leave from the end until a live one, the witness, is found.
  local before, witness_ms = slots, nil
  slots = tonumber(slots or 0)
  for _ = 1, MOST_POPS do
    if slots == 0 then break end
    pick = server_us % slots + 1
    local ends = redis.call('HMGET', key, 'r' .. slots, 'r' .. pick, 'i' .. pick)
    local reader_ms = tonumber(redis.call('HGET', key, 'R' .. ends[1]))
    if reader_ms > now_ms then
      witness_ms, moved, moved_since_ms = reader_ms, ends[2], ends[3]
      break
    end
    redis.call('HDEL', key, 'r' .. slots, 'i' .. slots, 'R' .. ends[1], 's' .. ends[1])
    slots = slots - 1
    if ends[1] == id then own = false end
  end
  if slots > 0 and (mode == 'w' or not witness_ms) then
    if slots ~= tonumber(before) then redis.call('HSET', key, 'a', slots) end
    return contended(witness_ms or now_ms)
  end

  if mode == 'w' then
    redis.call('HDEL', key, 'a', 'm', 'v', 'o', 'read')
  else
    -- Whatever `write` says is dead by now. Beside our readers the field must be absent: renew and leave take it for an intruder's.
    if write or writer then redis.call('HDEL', key, 'W', 'D', 'I', 'write') end
    -- Beside recorded readers it was an intruder's: who came before now has been overrun, and is told when it asks.
    if write and slots > 0 then redis.call('HSET', key, 'o', now_ms) end
    if foreign then -- our stamp hides the foreign one: remember it for writers and for our last reader
      covered = math.max(read, covered or 0)
      redis.call('HSET', key, 'v', covered)
    end
    if slots > 0 then
      token = tonumber(last)
      if own then deadline_ms = math.max(deadline_ms, own) end
      stamp_ms = math.max(stamp_ms, stamp, deadline_ms)
    end
    -- Never equal to the covered one, or its owner's release would delete ours.
    if covered then stamp_ms = math.max(stamp_ms, covered + 1) end
  end
end

if mode == 'w' then
  redis.call('HSET', key, 't', token, 'W', id, 'D', deadline_ms, 'I', now_ms, 'write', deadline_ms)
elseif slots == 0 then
  redis.call('HSET', key, 't', token, 'a', 1, 'r1', id, 'i1', now_ms, 's' .. id, 1, 'R' .. id, deadline_ms,
    'm', stamp_ms, 'read', stamp_ms)
elseif own then
  redis.call('HSET', key, 'a', slots, 'R' .. id, deadline_ms, 'm', stamp_ms, 'read', stamp_ms)
  -- A dead one's slot is used again, for a hold that begins now.
  if tonumber(own) <= now_ms then redis.call('HSET', key, 'i' .. redis.call('HGET', key, 's' .. id), now_ms) end
else
  -- The newcomer takes any slot and sends its reader to the end: sooner or later each dead one is looked at.
  local to = slots + 1
  -- A hash of short fields is a list that is searched from end to end. One value of more than 64 bytes makes it a table for good.
  local first = to < FEW and to or string.rep('0', 65)
  redis.call('HSET', key, 'a', first, 'a', to, 'r' .. to, moved, 'i' .. to, moved_since_ms, 's' .. moved, to,
    'r' .. pick, id, 'i' .. pick, now_ms, 's' .. id, pick, 'R' .. id, deadline_ms, 'm', stamp_ms, 'read', stamp_ms)
end
redis.call('PEXPIREAT', key, stamp_ms + RETENTION_MS)
return {'granted', id, server_us, token, deadline_ms - now_ms}
