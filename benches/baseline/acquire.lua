#!lua
-- Takes the lock for one acquisition, or a place in its queue, or tells when to ask again. A repeat with the id of a live hold
-- extends it, one with the id of a live waiter keeps it alive.
-- KEYS: the lock
-- ARGV: not_after_ms, id, mode ('r' or 'w'), lease_ms, patience_ms (0: does not wait), turns, published_read_limit_ms,
--   published_write_limit_ms
-- Returns {'granted', id, server_us, token, turns, remaining_ms, writers_waiting (0 or 1)} | {'queued', id, server_us, retry_in_ms}
--   | {'contended', id, server_us, retry_in_ms} | {'late', id, server_us}
local key = KEYS[1]
local not_after_ms, id, mode, lease_ms = tonumber(ARGV[1]), ARGV[2], ARGV[3], tonumber(ARGV[4])
local patience_ms, turns, read_limit_ms, write_limit_ms = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7], ARGV[8]
local RETENTION_MS = 60000

local time = redis.call('TIME')
local server_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(server_us / 1000)
if now_ms > not_after_ms then return {'late', id, server_us} end

local last, first, writer, writer_ends, write, read, slots, stamp, covered, head, waiting, heard_ms, own = unpack(redis.call('HMGET', key,
  't', 'T', 'W', 'D', 'write', 'read', 'a', 'm', 'v', 'N', 'c', 'u', 'R' .. id))
local deadline_ms = now_ms + lease_ms

if not (writer or write or read or slots or head or waiting) then -- free, and nothing foreign
  local token, block = math.max(server_us, (last or 0) + 1), 1
  if mode == 'w' then
    block = math.max(1, math.min(server_us + 1000000 - token, turns, 64))
    redis.call('HSET', key, 't', token + block - 1, 'T', token, 'W', id, 'D', deadline_ms, 'I', now_ms, 'write', deadline_ms)
  else
    redis.call('HSET', key, 't', token, 'a', 1, 'r1', id, 'i1', now_ms, 's' .. id, 1, 'R' .. id, deadline_ms,
      'm', deadline_ms, 'read', deadline_ms)
  end
  redis.call('PEXPIREAT', key, deadline_ms + RETENTION_MS)
  return {'granted', id, server_us, token, block, lease_ms, 0}
end

--@queue

local function granted(token, block)
  local writers_waiting = next_writer() and 1 or 0
  finish()
  return {'granted', id, server_us, token, block, deadline_ms - now_ms, writers_waiting}
end

if writer == id and mode == 'w' and writer_ms > now_ms and write ~= writer_ends then
  -- Our stamp is gone: somebody may have been inside, so this is a new acquisition.
  after_writer, writer_ms = true, 0
end
admit()

if writer == id and mode == 'w' and writer_ms > now_ms then
  deadline_ms = math.max(deadline_ms, writer_ms)
  redis.call('HSET', key, 'D', deadline_ms, 'write', deadline_ms)
  writer_ms, touched = deadline_ms, true
  return granted(tonumber(first), last - first + 1)
end

local own_ms = tonumber(own or 0)
local free_ms, place = nil, {}
if writer_ms > now_ms then
  free_ms = writer_ms
elseif foreign_write_ms > now_ms then
  free_ms = foreign_write_ms
elseif mode == 'w' or (own_ms <= now_ms and next_writer()) then
  if foreign_read_ms > now_ms then
    free_ms = foreign_read_ms
  else
    free_ms = live_reader()
    if not free_ms and (crowded or next_writer()) then free_ms = now_ms end
  end
elseif not live_reader() and crowded then
  free_ms = now_ms
elseif own_ms <= now_ms and waiting > 0 and redis.call('HGET', key, 'Q' .. id) then -- more waited than one script lets in
  free_ms = now_ms
end

if not free_ms and mode == 'w' then
  enter_writer(id, deadline_ms, turns)
  return granted(first, last - first + 1)
elseif not free_ms then
  if own then
    deadline_ms = math.max(deadline_ms, own_ms)
    read_phase(deadline_ms)
    redis.call('HSET', key, 'a', slots, 'R' .. id, deadline_ms, 'm', stamp, 'read', stamp)
    recorded_slots = slots
    -- A dead one's slot is used again, for a hold that begins now.
    if own_ms <= now_ms then redis.call('HSET', key, 'i' .. redis.call('HGET', key, 's' .. id), now_ms) end
  else
    enter_reader(id, deadline_ms)
  end
  return granted(last, 1)
end

local answer = 'contended'
if patience_ms > 0 and own_ms <= now_ms and not (writer == id and writer_ms > now_ms) then
  answer = 'queued'
  local until_ms, claim_ms = now_ms + patience_ms, math.min(lease_ms, patience_ms)
  heard_ms, touched = math.max(heard_ms, until_ms), true
  local heard, slot, next, prev, tail = unpack(redis.call('HMGET', key, 'U' .. id, 'Q' .. id, 'N' .. id, 'P' .. id, 'P'))
  if heard and tonumber(heard) > now_ms then
    local until_now_ms = math.max(heard, until_ms)
    if slot then
      redis.call('HSET', key, 'U' .. id, until_now_ms, 'C' .. id, claim_ms, 'u', heard_ms)
    else
      redis.call('HSET', key, 'U' .. id, until_now_ms, 'C' .. id, claim_ms, 'B' .. id, turns, 'u', heard_ms)
    end
  else
    if heard then -- it was given up, and begins anew
      dequeue(id, slot, next, prev)
      heard_ms = math.max(heard_ms, until_ms)
      tail = redis.call('HGET', key, 'P')
    end
    if mode == 'w' then
      prev = tail or ''
      -- How many wait is not counted: the second one makes the hash a table.
      redis.call('HSET', key, 'u', prev == '' and heard_ms or LONG, 'u', heard_ms, 'N' .. prev, id, 'P', id, 'P' .. id, prev, 'N' .. id, '',
        'U' .. id, until_ms, 'C' .. id, claim_ms, 'S' .. id, now_ms, 'B' .. id, turns)
    else
      -- A dead record of its own must not be there when it is let in.
      if own then remove_reader(id, tonumber(redis.call('HGET', key, 's' .. id))) end
      waiting = waiting + 1
      redis.call('HSET', key, 'c', first_value(waiting), 'c', waiting, 'q' .. waiting, id, 'Q' .. id, waiting,
        'U' .. id, until_ms, 'C' .. id, claim_ms, 'S' .. id, now_ms, 'u', heard_ms)
    end
  end
end
finish(free_ms)
return {answer, id, server_us, math.max(1, free_ms - now_ms)}
