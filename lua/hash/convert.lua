#!lua
-- Gives one hold up for one of the other side, in one step: a writer's for a read hold, with which all waiting readers come in, or the
-- only reader's for a write hold, unless a writer waits or it is the turn of readers. A repeat with the new id of a live hold extends it.
-- KEYS: the lock
-- ARGV: not_after_ms, old id, new id, new mode ('r' or 'w'), lease_ms, turns (how many tokens a writer wants at most), published limits
--   ('<read_limit_ms> <write_limit_ms>'), 'k' for who may keep the new hold (may be missing)
-- Returns 'granted new-id <time> last_token turns remaining_ms waited_for' (its tokens; 0 or 1) | 'refused new-id <time>'
--   | 'kept new-id <time>'
--   | 'lost new-id <time> forced_token' | 'late new-id <time>' | 'version new-id <time>'
local key, old, id, mode = KEYS[1], ARGV[2], ARGV[3], ARGV[4]
local turns, limits = ARGV[6], ARGV[7]
local RETENTION_MS, MOST_TURNS = 60000, 64

local time = redis.call('TIME')
local server_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(server_us / 1000)
if now_ms > tonumber(ARGV[1]) then return 'late ' .. id .. ' ' .. time[1] .. ' ' .. time[2] end

local last, holder, queue, write, read, own, old_own, forced, mark =
  unpack(redis.call('HMGET', key, 't', 'h', 'u', 'write', 'read', 'R' .. id, 'R' .. old, 'F', 'k'))
local deadline_ms = now_ms + ARGV[5]

--@queue

local function granted(turns)
  local waited_for = (next_writer() or writer and in_turn + waiting > 0 and heard_ms > now_ms) and 1 or 0
  -- As in `acquire`.
  if ARGV[8] and (waited_for == 0 or tonumber(string.match(redis.call('HGET', key, 'k') or '', '^%d+')) ~= last) then set('k', last) end
  finish()
  return string.format('granted %s %s %s %.0f %d %.0f %d', id, time[1], time[2], last, turns, deadline_ms - now_ms, waited_for)
end

-- A new hold has no place in the queue.
local function leave_queue()
  if head == '-' and in_turn + waiting == 0 then return end
  local about, place, next, prev = unpack(redis.call('HMGET', key, 'U' .. id, 'Q' .. id, 'N' .. id, 'P' .. id))
  if about then dequeue(id, place, next, prev) end
end

-- The deadline of a reader that is live and beside whom no foreign writer is or was.
local function held_until(about)
  local ends_ms, since = string.match(about or '', '^(%d+) (%d+)$')
  return ends_ms and not ended and tonumber(ends_ms) > now_ms and not write and tonumber(since) >= overrun_ms and ends_ms
end

-- Whether nobody but `old` reads. Dead readers leave on the way.
local function reads_alone()
  if sole then return true end
  local slot = redis.call('HGET', key, 's' .. old)
  if slot ~= '1' then -- to the bottom of the array
    local bottom = redis.call('HGET', key, 'r1')
    redis.call('HSET', key, 'r1', old, 's' .. old, 1, 'r' .. slot, bottom, 's' .. bottom, slot)
    touched = true
  end
  while slots > 1 do
    local other = redis.call('HGET', key, 'r' .. slots)
    local ends_ms = tonumber(string.match(redis.call('HGET', key, 'R' .. other), '^%d+'))
    if ends_ms > now_ms or records == 0 then return false end
    redis.call('HDEL', key, 'r' .. slots, 's' .. other, 'R' .. other)
    slots, records, touched = slots - 1, records - 1, true
  end
  return true
end

if sole == old then old_own = string.format('%.0f %.0f', sole_ms, sole_since) end
admit()
if #news > 0 then old_own = redis.call('HGET', key, 'R' .. old) end
local writes = write == writer_ends and writer
local own_ms, old_ms = held_until(own), held_until(old_own)

if mode == 'w' and writes == id then
  deadline_ms = math.max(deadline_ms, writer_ms)
  writer_ms, stamped, touched = deadline_ms, true, true
  return granted(block)
elseif mode == 'r' and own_ms then
  deadline_ms, looked, live_ms = math.max(deadline_ms, own_ms), true, own_ms
  read_phase(deadline_ms)
  extend_reader(id, deadline_ms, string.match(own, '%d+$'))
  return granted(1)
elseif mode == 'r' and writes == old then
  writer = nil
  begin_turn()
  leave_queue()
  enter_reader(id, deadline_ms)
  admit()
  return granted(1)
elseif mode == 'w' and old_ms then
  if in_turn == 0 and not next_writer() and foreign_read_ms <= now_ms and reads_alone() then
    leave_queue()
    if not sole then delete('r1', 's' .. old, 'R' .. old) end
    enter_writer(id, deadline_ms, turns)
    return granted(block)
  end
  finish()
  local marked = string.match(mark or '', '^%d+')
  if tonumber(marked) == last then -- perhaps nobody is inside of what is in the way: it is called, as by a try
    redis.pcall('SPUBLISH', channel_of(':call'), marked .. ' ' .. id)
    return 'kept ' .. id .. ' ' .. time[1] .. ' ' .. time[2]
  end
  return 'refused ' .. id .. ' ' .. time[1] .. ' ' .. time[2]
end
finish()
return string.format('lost %s %s %s %s', id, time[1], time[2], forced or 0)
