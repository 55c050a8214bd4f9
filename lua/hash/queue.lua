-- Who waits for the lock, and how it comes in: the long way. Not a script: it is put into those that say so, behind their short ways.
-- It counts on these locals: RETENTION_MS, MOST_TURNS, key, id, time, server_us, now_ms; limits, the published ones; and as read from the
-- lock, or nil: last, holder, queue, write, read, and own, the record of a reader with the caller's id.
local MOST_RECORDS = 96 -- the readers and waiters that one script removes or lets in, live or dead
local FEW = 8 -- so many make a table of a list
local records, news, call, touched = MOST_RECORDS, {}, nil, false
-- What is written at the end, first what goes. Nothing of it is read again before.
local gone, sets = {}, {}
local function set(name, value) sets[#sets + 1], sets[#sets + 2] = name, value end
local function delete(...)
  for _, name in ipairs({...}) do gone[#gone + 1] = name end
end

-- A layout that another version of the crate has written. The oldest had no header: whoever holds has stamped the lock.
local version = string.match(holder or queue or '', '^%S+')
local first_layout = not holder and (write or read) and redis.call('HMGET', key, 'W', 'a') or {}
if version and not (version == '2' and (not queue or string.sub(queue, 1, 2) == '2 '))
  or first_layout[1] or first_layout[2] then
  return 'version ' .. (id == '' and '-' or id) .. ' ' .. time[1] .. ' ' .. time[2]
end

-- What no clock says in milliseconds is no time, and nobody's.
local function stamp_of(text)
  local number = tonumber(text or nil)
  return number and number > 0 and number <= 9007199254740000 and math.floor(number) or 0
end

local read_limit_ms, write_limit_ms = string.match(limits, '^(%d+) (%d+)$')
local old_last, birth = last, nil -- and the first token that is known, if that is another one now
last = tonumber(last or 0)
local writer_ends, since_ms, block, writer = string.match(holder or '', '^2 w (%d+) (%d+) (%d+) (.*)$')
local kind, slots, stamp, covered, overrun_ms = string.match(holder or '', '^2 ([rx]) (%d+) (%d+%.0) (%d+) (%d+)$')
-- A reader that is alone may be in the header, instead of in a slot.
local sole_ms, sole_since, sole = string.match(holder or '', '^2 s (%d+) (%d+) (.*)$')
if sole then
  kind, slots, stamp = 'r', 1, sole_ms .. '.0'
  if sole == id then own = sole_ms .. ' ' .. sole_since end
  sole_ms = tonumber(sole_ms)
end
local writer_ms, ended = tonumber(writer_ends or 0), kind == 'x'
-- From when on what others have written does not count: at the limit it does, as among themselves.
local foreign_write_ms = write and write ~= writer_ends and stamp_of(write) + write_limit_ms + 1 or 0
local foreign_read = read and read ~= stamp and stamp_of(read)
local foreign_read_ms = foreign_read and foreign_read + read_limit_ms + 1 or 0
slots, stamp, covered, overrun_ms = tonumber(slots or 0), tonumber(stamp or 0), tonumber(covered or 0), tonumber(overrun_ms or 0)
if covered > 0 then foreign_read_ms = math.max(foreign_read_ms, covered + read_limit_ms + 1) end
local recorded_slots, stamped = slots, false

-- Whose turn it is among the waiting readers is in one array, those that have come since are in the other.
local heard_ms, turn, in_turn, waiting, writers, head, tail =
  string.match(queue or '2 0 x 0 0 0 - -', '^2 (%d+) (%a) (%d+) (%d+) (%d+) (%S+) (%S+)$')
heard_ms, in_turn, waiting, writers = tonumber(heard_ms), tonumber(in_turn), tonumber(waiting), tonumber(writers)
local recorded_waiters = in_turn + waiting + writers

local looked, live_ms, crowded = false, nil, false
local head_known, head_lives, head_next, head_claim_ms, head_turns = false, false, nil, nil, nil

-- A deadline of a live reader. Dead ones leave from the end of the array until one is found, or there are too many to tell.
local function live_reader()
  if looked then return live_ms end
  looked = true
  while slots > 0 do
    local who, ends_ms = sole, sole_ms
    if not sole then
      who = redis.call('HGET', key, 'r' .. slots)
      ends_ms = tonumber(string.match(redis.call('HGET', key, 'R' .. who), '^%d+'))
    end
    if ends_ms > now_ms and not ended then
      live_ms = ends_ms
      return live_ms
    end
    if records == 0 then
      crowded = true
      return
    end
    if not sole then redis.call('HDEL', key, 'r' .. slots, 's' .. who, 'R' .. who) end
    sole, slots, records, touched = nil, slots - 1, records - 1, true
    if who == id then own = nil end
  end
end

-- The waiting writer who is next. Dead ones before it are removed; if there are too many, the next counts as live.
local function next_writer()
  local dead = {}
  while head ~= '-' and not head_known do
    local about, next = unpack(redis.call('HMGET', key, 'U' .. head, 'N' .. head))
    local until_ms, claim_ms, turns = string.match(about, '^(%d+) (%d+) %d+ (%d+)$')
    head_lives = tonumber(until_ms) > now_ms
    if head_lives or records == 0 then
      head_known, head_next, head_claim_ms, head_turns = true, next, claim_ms, turns
    else
      for _, letter in ipairs({'U', 'N', 'P'}) do dead[#dead + 1] = letter .. head end
      head, writers, records, touched = next, writers - 1, records - 1, true
    end
  end
  if #dead > 0 then
    redis.call('HDEL', key, unpack(dead))
    if head == '-' then tail = '-' else redis.call('HSET', key, 'P' .. head, '-') end
  end
  return head ~= '-' and head
end

-- Takes a waiter out of the queue: a reader out of its place, a writer from between its neighbours.
local function dequeue(who, place, next, prev)
  touched = true
  if place then
    local letter = string.sub(place, 1, 1)
    local end_place = letter .. (letter == turn and in_turn or waiting)
    if place ~= end_place then -- the last one moves into the gap
      local other = redis.call('HGET', key, end_place)
      redis.call('HSET', key, place, other, 'Q' .. other, place)
    end
    delete('U' .. who, 'Q' .. who, end_place)
    if letter == turn then in_turn = in_turn - 1 else waiting = waiting - 1 end
  else
    if prev ~= '-' and next ~= '-' then
      redis.call('HSET', key, 'N' .. prev, next, 'P' .. next, prev)
    elseif prev ~= '-' then
      redis.call('HSET', key, 'N' .. prev, '-')
      tail = prev
    else
      head, head_known = next, false
      if next ~= '-' then redis.call('HSET', key, 'P' .. next, '-') else tail = '-' end
    end
    delete('U' .. who, 'N' .. who, 'P' .. who)
    writers = writers - 1
  end
end

-- It is the turn of all readers who wait now. Nobody is left of the turn before: no writer enters earlier.
local function begin_turn()
  if in_turn == 0 and waiting > 0 then
    turn, in_turn, waiting, touched = turn == 'x' and 'y' or 'x', waiting, 0, true
  end
end

-- Records a writer. Whoever else is recorded is dead.
local function enter_writer(who, deadline_ms, turns)
  local remembered = last
  last = math.max(server_us, last + 1)
  -- Tokens reach back and never ahead of the clock: after a loss of this record the next are higher.
  if remembered == 0 then birth = last end
  block = remembered == 0 and 1 or math.max(1, math.min(turns, MOST_TURNS, last - remembered))
  if read then delete('read') end
  writer, writer_ms, since_ms, sole, slots, recorded_slots, stamped, touched = who, deadline_ms, now_ms, nil, 0, 0, true, true
  write, writer_ends, foreign_read, covered = 'ours', 'ours', nil, 0 -- whoever else had stamped it is dead
end

-- Somebody who does not know us was found inside. The evidence goes with whoever is told; what stays is that nothing is known any more of
-- the tokens up to now, so that no later copy of a request takes the end of their hold for a release.
local function disown() birth = last + 1 end

-- What all readers of a phase share, for one until `deadline_ms` more: token and stamp. Begins a phase where none is live.
local function read_phase(deadline_ms)
  if not live_reader() then
    if last == 0 then birth = server_us end
    last, stamp, overrun_ms, ended = math.max(server_us, last + 1), 0, 0, false
  end
  -- Whatever `write` says is dead by now. Beside our readers the field must be absent: renew and leave take it for an intruder's.
  if write then
    delete('write')
    -- Beside recorded readers it was an intruder's: who came before now has been overrun, and is told when it asks. Its token is old.
    if live_reader() then
      disown()
      overrun_ms, last = now_ms, math.max(server_us, last + 1)
    end
    write = nil
  end
  -- Our stamp hides it: remember it for writers and our last reader.
  if foreign_read and foreign_read + read_limit_ms >= now_ms then covered = math.max(foreign_read, covered) end
  foreign_read, stamped, touched = nil, true, true
  -- Never lower than what it hides: those whom that one keeps out are kept out by ours.
  stamp = math.max(stamp, deadline_ms, covered)
end

-- Gives a slot to the reader that is in the header. At once: whoever comes beside it may take that.
local function unfold()
  if sole then redis.call('HSET', key, 'r1', sole, 's' .. sole, 1, 'R' .. sole, string.format('%.0f %.0f', sole_ms, sole_since)) end
  sole = nil
end

-- Moves the deadline of a recorded reader.
local function extend_reader(who, deadline_ms, since)
  if sole then sole_ms, sole_since = deadline_ms, since else set('R' .. who, string.format('%.0f %.0f', deadline_ms, since)) end
end

-- Records a reader that is not recorded. Any place will do, and the reader of that place goes to the end: sooner or later each dead
-- one is there.
local function enter_reader(who, deadline_ms)
  read_phase(deadline_ms)
  unfold()
  if slots == 0 then
    sole, sole_ms, sole_since = who, deadline_ms, now_ms
  else
    local pick = server_us % slots + 1
    local moved = redis.call('HGET', key, 'r' .. pick)
    set('r' .. (slots + 1), moved)
    set('s' .. moved, slots + 1)
    set('r' .. pick, who)
    set('s' .. who, pick)
    set('R' .. who, string.format('%.0f %.0f', deadline_ms, now_ms))
  end
  slots, looked, live_ms, crowded = slots + 1, true, deadline_ms, false
end

-- Removes the record of a reader. Another moves into the gap.
local function remove_reader(who, slot)
  if not sole then
    if tonumber(slot) ~= slots then
      local other = redis.call('HGET', key, 'r' .. slots)
      redis.call('HSET', key, 'r' .. slot, other, 's' .. other, slot)
    end
    redis.call('HDEL', key, 'r' .. slots, 's' .. who, 'R' .. who)
  end
  sole, slots, touched, looked, live_ms, crowded = nil, slots - 1, true, false, nil, false
  if who == id then own = nil end
end

-- Moves those whose turn it is to the readers, from the end.
local function admit_readers()
  live_reader()
  local count, places, ids = math.min(in_turn, records), {}, nil
  if crowded or count == 0 then return end
  for n = 1, count do places[n] = turn .. (in_turn - n + 1) end
  ids = redis.call('HMGET', key, unpack(places))
  local about, entered, longest_ms = {}, {}, 0
  for n, who in ipairs(ids) do about[n] = 'U' .. who end
  about = redis.call('HMGET', key, unpack(about))
  local told = #news
  local n_slots = slots
  for n, who in ipairs(ids) do
    places[#places + 1], places[#places + 2] = 'Q' .. who, 'U' .. who
    local until_ms, claim_ms = string.match(about[n], '^(%d+) (%d+)')
    if tonumber(until_ms) > now_ms then
      local deadline_ms, m = now_ms + claim_ms, #entered
      n_slots, longest_ms = n_slots + 1, math.max(longest_ms, deadline_ms)
      entered[m + 1], entered[m + 2], entered[m + 3], entered[m + 4] = 'r' .. n_slots, who, 's' .. who, n_slots
      entered[m + 5], entered[m + 6] = 'R' .. who, string.format('%.0f %.0f', deadline_ms, now_ms)
      if who == id then own = entered[m + 6] end
      news[#news + 1] = {id = who, turns = 1, deadline_ms = deadline_ms}
    end
  end
  redis.call('HDEL', key, unpack(places)) -- at once, as below: whoever asks may be among them
  in_turn, records, touched = in_turn - count, records - count, true
  if #entered == 0 then return end
  read_phase(longest_ms)
  unfold()
  redis.call('HSET', key, unpack(entered)) -- whoever asks may get one of these slots
  slots, looked, live_ms, crowded = n_slots, true, longest_ms, false
  for n = told + 1, #news do news[n].token = last end
end

-- Lets the next phase begin if the lock is free, and readers join readers if no writer waits. After a writer all waiting readers
-- enter, however many scripts that takes, after readers the first waiting writer. Whom a foreign stamp keeps out keeps the others out.
local function admit()
  if writer or foreign_write_ms > now_ms or (head == '-' and in_turn + waiting == 0) then return end
  local told = #news
  repeat
    if in_turn == 0 and waiting > 0 and not next_writer() then begin_turn() end
    local before = in_turn
    if in_turn > 0 then admit_readers() end
  until in_turn > 0 or before == 0
  if in_turn == 0 and next_writer() and head_lives and foreign_read_ms <= now_ms and not live_reader() and not crowded then
    local who, deadline_ms, turns = head, now_ms + head_claim_ms, head_turns
    dequeue(who, nil, head_next, '-')
    enter_writer(who, deadline_ms, turns)
    news[#news + 1] = {id = who, token = last, turns = block, deadline_ms = deadline_ms}
  end
  local waited_for = #news > told and (next_writer() or writer and in_turn + waiting > 0 and heard_ms > now_ms) and 1 or 0
  for n = told + 1, #news do news[n].waited_for = waited_for end
  -- The others of the turn come in one after the other's question.
  call = in_turn > 0 and redis.call('HGET', key, turn .. in_turn)
end

-- It lies in the key's slot: a key without a hash tag becomes one.
local function channel_of(rest) return (string.find(key, '^[^{]*{[^}]+}') and key or '{' .. key .. '}') .. rest end

-- Ends the script, but for its answer: the headers, the ttl, and last the notices. `free_ms` is when the lock may be free if nothing was
-- changed.
local function finish(free_ms)
  local header
  if last ~= tonumber(old_last or 0) then set('t', last) end
  if birth then set('b', birth) end
  if writer then
    header = string.format('2 w %.0f %.0f %02d %s', writer_ms, since_ms, block, writer)
    if stamped then set('write', writer_ms) end
  elseif slots > 0 then
    -- A hash of short fields is a list that is searched from end to end. One value of more than 64 bytes makes it a table for good.
    if slots >= FEW and recorded_slots < FEW then set('h', string.rep('0', 65)) end
    if sole and (ended or stamp > sole_ms or covered + overrun_ms > 0) then unfold() end
    if sole then
      header = string.format('2 s %.0f %.0f %s', sole_ms, sole_since, sole)
    else
      header = string.format('2 %s %d %.0f.0 %.0f %.0f', ended and 'x' or 'r', slots, stamp, covered, overrun_ms)
    end
    -- A number with a fraction of nothing: no published client writes that, so none takes our stamp for its own.
    if stamped then set('read', string.format('%.0f.0', stamp)) end
  elseif kind and not foreign_read then -- nobody reads any more, but a foreign reader that ours covered may still be inside
    if covered > 0 then set('read', covered) elseif read then delete('read') end
  end
  if header ~= (holder or nil) then
    touched = true
    if header then set('h', header) else delete('h') end
  end
  if head ~= '-' or in_turn + waiting > 0 then
    header = string.format('2 %.0f %s %d %d %d %s %s', heard_ms, turn, in_turn, waiting, writers, head, tail)
    if recorded_waiters < FEW and in_turn + waiting + writers >= FEW then set('u', string.rep('0', 65)) end -- likewise
    if header ~= queue then set('u', header) end
  else
    heard_ms = 0
    if queue then delete('u') end
  end
  if #gone > 0 then redis.call('HDEL', key, unpack(gone)) end
  if #sets > 0 then redis.call('HSET', key, unpack(sets)) end
  local ends_ms = math.max(now_ms, writer and writer_ms or 0, slots > 0 and stamp or 0, heard_ms)
  if touched then
    redis.call('PEXPIREAT', key, ends_ms + RETENTION_MS)
  else -- NX: only a key that lost its ttl gets one here
    redis.call('PEXPIREAT', key, math.max(ends_ms, free_ms or 0) + RETENTION_MS, 'NX')
  end
  for _, one in ipairs(news) do
    if one.id ~= id then
      -- %.0f: concatenation would round a microsecond number to 14 digits.
      redis.pcall('SPUBLISH', channel_of(':wake:' .. string.sub(one.id, 1, 32)), string.format('%s %.0f %.0f %.0f %.0f %d', one.id, one.token,
        one.turns, one.deadline_ms, server_us, one.waited_for))
    end
  end
  if call and call ~= id then redis.pcall('SPUBLISH', channel_of(':wake:' .. string.sub(call, 1, 32)), call) end
end

if writer and writer_ms <= now_ms then -- dead, and its own stamp with it
  if write == writer_ends then
    redis.call('HDEL', key, 'write')
    write = nil
  end
  writer = nil
  begin_turn()
end
