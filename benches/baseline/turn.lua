#!lua
-- Gives one hold up for one of the other side, in one step: a writer's for a read hold, with which all waiting readers come in, or the
-- only reader's for a write hold, unless a writer waits. A repeat with the new id of a live hold extends it.
-- KEYS: the lock
-- ARGV: not_after_ms, old id, new id, new mode ('r' or 'w'), lease_ms, turns, published_read_limit_ms, published_write_limit_ms
-- Returns {'granted', new id, server_us, token, turns, remaining_ms, writers_waiting (0 or 1)} | {'refused', new id, server_us}
--   | {'lost', new id, server_us, forced_token} | {'late', new id, server_us}
local key = KEYS[1]
local not_after_ms, old, id, mode, lease_ms = tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local turns, read_limit_ms, write_limit_ms = tonumber(ARGV[6]), ARGV[7], ARGV[8]
local RETENTION_MS = 60000

local time = redis.call('TIME')
local server_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(server_us / 1000)
if now_ms > not_after_ms then return {'late', id, server_us} end

local last, first, writer, writer_ends, write, read, slots, stamp, covered, head, waiting, heard_ms, own, old_ms, overrun, forced =
  unpack(redis.call('HMGET', key, 't', 'T', 'W', 'D', 'write', 'read', 'a', 'm', 'v', 'N', 'c', 'u', 'R' .. id, 'R' .. old, 'o', 'F'))
local deadline_ms = now_ms + lease_ms

--@queue

local function granted(token, block)
  local writers_waiting = next_writer() and 1 or 0
  finish()
  return {'granted', id, server_us, token, block, deadline_ms - now_ms, writers_waiting}
end

-- A new hold has no place in the queue.
local function leave_queue()
  if not (head or waiting > 0) then return end
  local heard, slot, next, prev = unpack(redis.call('HMGET', key, 'U' .. id, 'Q' .. id, 'N' .. id, 'P' .. id))
  if heard then dequeue(id, slot, next, prev) end
end

-- Whether a foreign writer is or was beside this reader.
local function is_overrun(who)
  if write then return true end
  return overrun and tonumber(redis.call('HGET', key, 'i' .. redis.call('HGET', key, 's' .. who))) < tonumber(overrun)
end

-- Whether nobody but `old` reads. Dead readers leave on the way.
local function reads_alone()
  local slot = redis.call('HGET', key, 's' .. old)
  if slot ~= '1' then -- to the bottom of the array
    local bottom = redis.call('HMGET', key, 'r1', 'i1', 'i' .. slot)
    redis.call('HSET', key, 'r1', old, 'i1', bottom[3], 's' .. old, 1, 'r' .. slot, bottom[1], 'i' .. slot, bottom[2], 's' .. bottom[1], slot)
    touched = true
  end
  for _ = 1, MOST_POPS do
    if slots == 1 then return true end
    local other = redis.call('HGET', key, 'r' .. slots)
    if tonumber(redis.call('HGET', key, 'R' .. other)) > now_ms then return false end
    redis.call('HDEL', key, 'r' .. slots, 'i' .. slots, 'R' .. other, 's' .. other)
    slots = slots - 1
  end
  return slots == 1
end

admit()
if #news > 0 then old_ms = redis.call('HGET', key, 'R' .. old) end
local ours = write == writer_ends or #news > 0
local writes = writer_ms > now_ms and ours and writer

if mode == 'w' and writes == id then
  deadline_ms = math.max(deadline_ms, writer_ms)
  redis.call('HSET', key, 'D', deadline_ms, 'write', deadline_ms)
  writer_ms, touched = deadline_ms, true
  return granted(tonumber(first), last - first + 1)
elseif mode == 'r' and tonumber(own or 0) > now_ms and not is_overrun(id) then
  deadline_ms = math.max(deadline_ms, own)
  walked, witness_ms = true, own
  read_phase(deadline_ms)
  redis.call('HSET', key, 'R' .. id, deadline_ms, 'm', stamp, 'read', stamp)
  return granted(last, 1)
elseif mode == 'r' and writes == old then
  leave_queue()
  writer_ms, after_writer = 0, true
  enter_reader(id, deadline_ms)
  admit()
  return granted(last, 1)
elseif mode == 'w' and tonumber(old_ms or 0) > now_ms and not is_overrun(old) then
  if not next_writer() and foreign_read_ms <= now_ms and reads_alone() then
    leave_queue()
    redis.call('HDEL', key, 'r1', 'i1', 'R' .. old, 's' .. old)
    enter_writer(id, deadline_ms, turns)
    return granted(first, last - first + 1)
  end
  finish()
  return {'refused', id, server_us}
end
finish()
return {'lost', id, server_us, tonumber(forced or 0)}
