-- Who waits for the lock, and how it comes in. Not a script: it is put into those that say so, behind their short way out.
-- It counts on these locals: RETENTION_MS, key, server_us, now_ms; the published limits, read_limit_ms, write_limit_ms; the caller's id; and as
-- read from the lock, or nil: last, first, writer, writer_ends, write, read, slots, stamp, covered, head, waiting, heard_ms, and own,
-- the deadline of a reader with the caller's id.
local MOST_POPS, BATCH, MOST_LOOKS, FEW = 100, 100, 500, 8
local AHEAD_US, MOST_TURNS, LONG = 1000000, 64, string.rep('0', 65)

last, slots, waiting = tonumber(last or 0), tonumber(slots or 0), tonumber(waiting or 0)
local writer_ms = tonumber(writer_ends or 0)
-- When what others have written stops to count.
local foreign_write_ms = write and write ~= writer_ends and write + write_limit_ms or 0
local foreign_read_ms = read and read ~= stamp and read + read_limit_ms or 0
local foreign_read = foreign_read_ms > 0 and tonumber(read)
stamp, covered, heard_ms = tonumber(stamp or 0), tonumber(covered or nil), tonumber(heard_ms or 0)
if covered then foreign_read_ms = math.max(foreign_read_ms, covered + read_limit_ms) end

local after_writer = writer and writer_ms <= now_ms
local recorded_slots, touched, news = slots, false, {}
local walked, witness_ms, crowded, pick, moved, moved_since_ms = false, nil, false, nil, nil, nil
local head_lives, head_next, head_claim_ms, head_turns = nil, nil, nil, nil

-- A deadline of a live reader, the witness. Dead ones leave from the end of the array until it is found.
local function live_reader()
  if walked then return witness_ms end
  walked = true
  for _ = 1, MOST_POPS do
    if slots == 0 then return end
    pick = server_us % slots + 1
    local ends = redis.call('HMGET', key, 'r' .. slots, 'r' .. pick, 'i' .. pick)
    local reader_ms = tonumber(redis.call('HGET', key, 'R' .. ends[1]))
    if reader_ms > now_ms then
      witness_ms, moved, moved_since_ms = reader_ms, ends[2], ends[3]
      return witness_ms
    end
    redis.call('HDEL', key, 'r' .. slots, 'i' .. slots, 'R' .. ends[1], 's' .. ends[1])
    slots = slots - 1
    if ends[1] == id then own = nil end
  end
  crowded = slots > 0
end

-- Deletes fields, and what goes with the last waiter.
local function drop(fields)
  touched = true
  if waiting == 0 and not head then
    fields[#fields + 1] = 'u'
    heard_ms = 0
  end
  redis.call('HDEL', key, unpack(fields))
end

-- The waiting writer who is next. Dead ones before it are removed; if there are too many, the next may be dead too.
local function next_writer()
  if head_lives or not head then return head end
  local fields, pops = {}, 0
  while head and pops < MOST_POPS do
    local place = redis.call('HMGET', key, 'U' .. head, 'N' .. head, 'C' .. head, 'B' .. head)
    if tonumber(place[1]) > now_ms then
      head_lives, head_next, head_claim_ms, head_turns = true, place[2], place[3], place[4]
      break
    end
    for _, letter in ipairs({'U', 'C', 'S', 'B', 'N', 'P'}) do fields[#fields + 1] = letter .. head end
    head, pops = place[2] ~= '' and place[2] or nil, pops + 1
  end
  if pops > 0 then
    if head then
      redis.call('HSET', key, 'N', head, 'P' .. head, '')
    else
      fields[#fields + 1], fields[#fields + 2] = 'N', 'P'
    end
    drop(fields)
  end
  return head
end

-- Takes a waiter out of the queue: a reader out of its slot, a writer from between its neighbours.
local function dequeue(who, slot, next, prev)
  local fields = {'U' .. who, 'C' .. who, 'S' .. who}
  if slot then
    fields[4], fields[5] = 'q' .. waiting, 'Q' .. who
    waiting = waiting - 1
    if waiting == 0 then
      fields[6] = 'c'
    elseif tonumber(slot) > waiting then
      redis.call('HSET', key, 'c', waiting)
    else -- the last one moves into the gap
      local other = redis.call('HGET', key, 'q' .. (waiting + 1))
      redis.call('HSET', key, 'c', waiting, 'q' .. slot, other, 'Q' .. other, slot)
    end
  else
    fields[4], fields[5], fields[6] = 'B' .. who, 'N' .. who, 'P' .. who
    head_lives = nil
    if prev == '' then head = next ~= '' and next or nil end
    if head then
      redis.call('HSET', key, 'N' .. prev, next, 'P' .. next, prev)
    else
      fields[7], fields[8] = 'N', 'P'
    end
  end
  drop(fields)
end

-- Records a writer. Whoever else is recorded is dead.
local function enter_writer(who, deadline_ms, turns)
  if recorded_slots > 0 or read then redis.call('HDEL', key, 'a', 'm', 'v', 'o', 'read') end
  first = math.max(server_us, last + 1)
  last = first + math.max(1, math.min(server_us + AHEAD_US - first, turns, MOST_TURNS)) - 1
  redis.call('HSET', key, 't', last, 'T', first, 'W', who, 'D', deadline_ms, 'I', now_ms, 'write', deadline_ms)
  writer, writer_ms, recorded_slots, slots, stamp, touched = who, deadline_ms, 0, 0, 0, true
end

-- What all readers of a phase share, for one until `deadline_ms` more: token and stamp. Begins a phase where none is live.
local function read_phase(deadline_ms)
  if not live_reader() then last, stamp = math.max(server_us, last + 1), 0 end
  -- Whatever `write` says is dead by now. Beside our readers the field must be absent: renew and leave take it for an intruder's.
  if write or writer then
    redis.call('HDEL', key, 'W', 'D', 'I', 'T', 'write')
    -- Beside recorded readers it was an intruder's: who came before now has been overrun, and is told when it asks.
    if write and live_reader() then redis.call('HSET', key, 'o', now_ms) end
    write, writer, writer_ms = nil, nil, 0
  end
  if foreign_read and foreign_read + read_limit_ms > now_ms then -- our stamp hides it: remember it for writers and our last reader
    covered = math.max(foreign_read, covered or 0)
    redis.call('HSET', key, 'v', covered)
  end
  foreign_read, touched = nil, true
  -- Never equal to the covered one, or its owner's release would delete ours.
  stamp = math.max(stamp, deadline_ms, (covered or 0) + 1)
end

-- A hash of short fields is a list that is searched from end to end. One value of more than 64 bytes makes it a table for good.
local function first_value(count)
  return count < FEW and count or LONG
end

-- Records a reader that is not recorded.
local function enter_reader(who, deadline_ms)
  local joins = live_reader()
  read_phase(deadline_ms)
  slots = slots + 1
  recorded_slots = slots
  if joins and not moved then -- beside those who were let in just now
    redis.call('HSET', key, 'a', first_value(slots), 'a', slots, 'r' .. slots, who, 'i' .. slots, now_ms, 's' .. who, slots, 'R' .. who, deadline_ms,
      'm', stamp, 'read', stamp)
  elseif joins then
    -- The newcomer takes any slot and sends its reader to the end: sooner or later each dead one is looked at.
    redis.call('HSET', key, 'a', first_value(slots), 'a', slots, 'r' .. slots, moved, 'i' .. slots, moved_since_ms, 's' .. moved, slots,
      'r' .. pick, who, 'i' .. pick, now_ms, 's' .. who, pick, 'R' .. who, deadline_ms, 'm', stamp, 'read', stamp)
  else
    redis.call('HSET', key, 't', last, 'a', 1, 'r1', who, 'i1', now_ms, 's' .. who, 1, 'R' .. who, deadline_ms, 'm', stamp, 'read', stamp)
  end
  witness_ms = deadline_ms
end

-- Removes the record of a reader. The number of slots is written at the end.
local function remove_reader(who, slot)
  if slot ~= slots then -- the last reader moves into the gap
    local other = redis.call('HMGET', key, 'r' .. slots, 'i' .. slots)
    redis.call('HSET', key, 'r' .. slot, other[1], 'i' .. slot, other[2], 's' .. other[1], slot)
  end
  redis.call('HDEL', key, 'r' .. slots, 'i' .. slots, 'R' .. who, 's' .. who)
  slots, walked = slots - 1, false
end

-- Moves waiting readers to the readers, from the end, and whether anybody was alive. The rest comes in with the next script.
local function admit_readers()
  live_reader()
  if crowded then return true end
  local longest_ms, looks, told = 0, 0, #news
  while waiting > 0 and looks < MOST_LOOKS do
    local count, fields = math.min(waiting, BATCH), {}
    for n = 1, count do fields[n] = 'q' .. (waiting - n + 1) end
    local ids, about, records = redis.call('HMGET', key, unpack(fields)), {}, {}
    for n, who in ipairs(ids) do
      about[2 * n - 1], about[2 * n] = 'U' .. who, 'C' .. who
      for _, letter in ipairs({'Q', 'U', 'C', 'S'}) do fields[#fields + 1] = letter .. who end
    end
    about = redis.call('HMGET', key, unpack(about))
    for n, who in ipairs(ids) do
      if tonumber(about[2 * n - 1]) > now_ms then
        local deadline_ms = now_ms + about[2 * n]
        slots, longest_ms = slots + 1, math.max(longest_ms, deadline_ms)
        for _, item in ipairs({'r' .. slots, who, 'i' .. slots, now_ms, 's' .. who, slots, 'R' .. who, deadline_ms}) do
          records[#records + 1] = item
        end
        news[#news + 1] = {id = who, deadline_ms = deadline_ms}
        if who == id then own = deadline_ms end
      end
    end
    waiting, looks = waiting - count, looks + count
    if #records > 0 then redis.call('HSET', key, unpack(records)) end
    if waiting == 0 then fields[#fields + 1] = 'c' end
    drop(fields)
  end
  if waiting > 0 then redis.call('HSET', key, 'c', waiting) end
  if #news == told then return waiting > 0 end
  read_phase(longest_ms)
  redis.call('HSET', key, 't', last, 'a', first_value(slots), 'a', slots, 'm', stamp, 'read', stamp)
  recorded_slots, walked, witness_ms = slots, true, longest_ms
  for n = told + 1, #news do news[n].token, news[n].turns = last, 1 end
  return true
end

local function admit_writer(who)
  local deadline_ms, turns = now_ms + head_claim_ms, tonumber(head_turns)
  dequeue(who, nil, head_next, '')
  enter_writer(who, deadline_ms, turns)
  news[#news + 1] = {id = who, token = first, turns = last - first + 1, deadline_ms = deadline_ms}
end

-- Lets the next phase begin if the lock is free, and readers join readers if no writer waits. After a writer all waiting
-- readers enter, after readers the first waiting writer. Whom a foreign stamp keeps out keeps the others out.
local function admit()
  if (writer and writer_ms > now_ms) or foreign_write_ms > now_ms or not (head or waiting > 0) then return end
  local told = #news
  local readers_turn = waiting > 0 and (after_writer or not next_writer())
  if not (readers_turn and admit_readers()) and next_writer() and head_lives and foreign_read_ms <= now_ms
    and not live_reader() and not crowded then
    admit_writer(head)
  end
  local writers_waiting = #news > told and next_writer() and 1 or 0
  for n = told + 1, #news do news[n].writers_waiting = writers_waiting end
end

-- Ends the script, but for its answer: what the walk has left, the ttl, and last the notices. `free_ms` is when the lock may be free
-- if nothing was changed.
local function finish(free_ms)
  if slots ~= recorded_slots then
    touched = true
    if slots > 0 then
      redis.call('HSET', key, 'a', slots)
    else -- the last one was dead: a foreign reader that it covered may still be inside
      stamp = 0
      redis.call('HDEL', key, 'a', 'm', 'v', 'o')
      if not foreign_read then
        if covered then redis.call('HSET', key, 'read', covered) else redis.call('HDEL', key, 'read') end
      end
    end
  end
  local ends_ms = math.max(now_ms, writer_ms, stamp, heard_ms)
  if touched then
    redis.call('PEXPIREAT', key, ends_ms + RETENTION_MS)
  else -- NX: only a key that lost its ttl gets one here
    redis.call('PEXPIREAT', key, math.max(ends_ms, free_ms or 0) + RETENTION_MS, 'NX')
  end
  for _, one in ipairs(news) do
    if one.id ~= id then
      -- %.0f: concatenation would round a microsecond number to 14 digits.
      redis.pcall('SPUBLISH', string.sub(key, 1, -5) .. 'wake:' .. string.sub(one.id, 1, 32), string.format('%s %.0f %.0f %.0f %.0f %d',
        one.id, one.token, one.turns, one.deadline_ms, server_us, one.writers_waiting))
    end
  end
end
