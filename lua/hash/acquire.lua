#!lua
-- Grants the lock to one acquisition, or gives it a place in the queue, or answers when to ask again. A repeat with the
-- id of a live hold extends the hold. A repeat with the id of a live waiter keeps its place.
-- KEYS: the lock
-- ARGV: not_after_ms, id, mode ('r' or 'w'), lease_ms, waiter_ttl_ms (0: does not wait), tokens (how many a writer wants at
--   most), limits of timestamp clients ('<read_limit_ms> <write_limit_ms>'), letters (may be missing): 'k' if the hold may
--   be cached, 't' for a try, which waits only where it recalls, or 'kt'
-- Returns 'granted id <time> last_token tokens remaining_ms waited_for' (0 or 1)
--   | 'queued id <time> retry_in_ms recalled' (0, or 1 if a waiter has recalled) | 'contended id <time> retry_in_ms 0'
--   | 'kept id <time> retry_in_ms 0' | 'late id <time>' | 'version id <time>'; <time> is two words, seconds and microseconds.
--   Behind the refusals a live holder, if there is one: ' w deadline_ms since_ms tokens id holders' | ' s deadline_ms since_ms
--   id holders', with the number of recorded holders. The id '?' is a timestamp client's
local id, mode, lease_ms = ARGV[2], ARGV[3], ARGV[4]
local RETENTION_MS, MAX_TOKENS, RECALL_INTERVAL_MS = 60000, 2048, 500

--@clock
if now_ms > ARGV[1] + 0 then return 'late ' .. id .. ' ' .. seconds .. ' ' .. micros end

local letters = ARGV[8]
local may_cache, is_try = letters and letters ~= 't', letters and letters ~= 'k'
local fields = call('HMGET', key, 't', 'h', 'u', 'write', 'read', 'k', 'R' .. id)
local last, holder, queue, write, read = fields[1], fields[2], fields[3], fields[4], fields[5]
local deadline_ms = now_ms + lease_ms

-- Fast path: the lock is free, and no stamp is there. Each format costs as much as two more fields to read, so the text of
-- the server's time is composed of its two words.
if not (holder or queue or write or read) then
  local token, tokens = seconds .. micros, '0001'
  if #micros < 6 then token = format('%s%06d', seconds, micros) end
  local ends, since = format('%d', deadline_ms), sub(token, 1, -4)
  if last then
    local passed = server_us - last
    if passed < 1 then passed, token = 1, format('%d', last + 1) end
    -- Tokens reach back and never ahead of the clock: after a loss of this record the next ones are higher.
    tokens = ARGV[6]
    if #tokens ~= 4 or tokens > '2048' or passed < MAX_TOKENS and passed < tokens + 0 then
      tokens = format('%04d', max(1, math.min(tokens + 0, MAX_TOKENS, passed)))
    end
  end
  if mode == 'w' then
    call('HSET', key, 't', token, 'h', '3 w ' .. ends .. ' ' .. since .. ' ' .. tokens .. ' ' .. id, 'write', ends)
  else
    tokens = '1'
    call('HSET', key, 't', token, 'h', '3 s ' .. ends .. ' ' .. since .. ' ' .. id, 'read', ends .. '.0')
  end
  if not last then call('HSET', key, 'b', token) end -- the first token that is known
  if may_cache then call('HSET', key, 'k', token) end
  call('PEXPIREAT', key, format('%d', deadline_ms + RETENTION_MS))
  return 'granted ' .. id .. ' ' .. seconds .. ' ' .. micros .. ' ' .. token .. ' ' .. tokens .. ' ' .. lease_ms .. ' 0'
end

-- Fast path: readers are inside, and no client waits. The new reader takes a random slot, and the reader of that slot
-- moves to the end.
if mode == 'r' and read and not (write or queue or fields[7]) then
  local slots, stamp = match(holder or '', '^3 r (%d+) (%d+%.0) 0 0$')
  if stamp == read and stamp + 0 > now_ms and slots ~= '7' then -- the eighth makes the hash a table
    local pick, new_slot = format('%d', server_us % slots + 1), format('%d', slots + 1)
    local ends = call('HMGET', key, 'r' .. slots, 'r' .. pick)
    if match(call('HGET', key, 'R' .. ends[1]), '^%d+') + 0 > now_ms then
      local text = format('%d.0', max(stamp + 0, deadline_ms))
      call('HSET', key, 'h', '3 r ' .. new_slot .. ' ' .. text .. ' 0 0', 'r' .. new_slot, ends[2], 's' .. ends[2], new_slot,
        'r' .. pick, id, 's' .. id, pick, 'R' .. id, format('%d %d', deadline_ms, now_ms), 'read', text)
      if may_cache then call('HSET', key, 'k', last) end
      call('PEXPIREAT', key, format('%d', sub(text, 1, -3) + RETENTION_MS))
      return 'granted ' .. id .. ' ' .. seconds .. ' ' .. micros .. ' ' .. last .. ' 1 ' .. lease_ms .. ' 0'
    end
  end
end

-- Fast path: readers are inside, and a writer waits. The new reader waits behind it.
if mode == 'r' and queue and read and not (write or is_try or fields[7]) and ARGV[5] ~= '0' then
  local slots, stamp = match(holder or '', '^3 r (%d+) (%d+%.0) 0 0$')
  local alive_until_ms, phase, later, writers, head, tail = match(queue, '^3 (%d+) (%a) 0 (%d+) (%d+) (%S+) (%S+)$')
  -- The eighth waiter makes the hash a table.
  if head and head ~= '-' and stamp == read and stamp + 0 > now_ms and later + writers ~= 7 then
    local own, first, reader = unpack(call('HMGET', key, 'U' .. id, 'U' .. head, 'r' .. slots))
    local is_plain = not own and match(first, '^%d+') + 0 > now_ms
    local record = is_plain and call('HGET', key, 'R' .. reader)
    local retry_in_ms = is_plain and match(record, '^%d+') - now_ms
    if is_plain and retry_in_ms > 0 then
      local until_ms, count = now_ms + ARGV[5], format('%d', later + 1)
      local place = (phase == 'x' and 'y' or 'x') .. count
      alive_until_ms = max(alive_until_ms + 0, until_ms)
      call('HSET', key, place, id, 'Q' .. id, place,
        'U' .. id, format('%d %d %d %s', until_ms, math.min(lease_ms + 0, ARGV[5] + 0), now_ms, ARGV[6]),
        'u', format('3 %d %s 0 %s %s %s %s', alive_until_ms, phase, count, writers, head, tail))
      call('PEXPIREAT', key, format('%d', max(stamp + 0, alive_until_ms) + RETENTION_MS))
      return 'queued ' .. id .. ' ' .. seconds .. ' ' .. micros .. format(' %d 0 s ', retry_in_ms) .. record .. ' ' .. reader
        .. ' ' .. slots
    end
  end
end

-- Slow path.
local waiter_ttl_ms, wanted_tokens, limits = tonumber(ARGV[5]), ARGV[6], ARGV[7]
local is_granted, free_ms, asked_mode = false, nil, mode
last = tonumber(last or 0)
--@state
--@dead

own_record = fields[7]
if queue then
  waiter_record, end_reader, picked, head_record, head_next = unpack(call('HMGET', key, 'U' .. id, 'r' .. end_slot,
    'r' .. format('%d', slots > 0 and server_us % slots + 1 or 0), 'U' .. head, 'N' .. head))
elseif slots > 0 and not (sole or own_record) then
  end_reader, picked = unpack(call('HMGET', key, 'r' .. end_slot, 'r' .. format('%d', server_us % slots + 1)))
end
if sole == id then
  own_ms, own_since = sole_ms, sole_since
elseif own_record then
  own_ms, own_since = match(own_record, '^(%d+) (%d+)$')
end
local is_reader = own_ms and kind ~= 'x' and own_ms + 0 > now_ms
if not is_reader then
  own_ms, own_is_dead = nil, own_ms ~= nil
elseif mode == 'r' and (write or own_since + 0 < overrun_ms) then
  -- An intruder was beside the hold, so this is a new acquisition. It gets no old token, even beside other readers.
  if write then
    birth = last + 1
    last = max(server_us, birth)
    to_set[1], to_set[2] = 't', format('%d', last)
  end
  slot, end_reader = unpack(call('HMGET', key, 's' .. id, 'r' .. end_slot))
  --@remove
  --@write
  own_ms, is_reader = nil, false
elseif mode == 'r' then
  own_ms, asked_mode = own_ms + 0, nil
end
if mode == 'w' and writer == id and write ~= writer_stamp then
  -- The stamp of the hold is gone, so an intruder may have been inside: this is a new acquisition.
  if sub(since_ms, 1, 1) == '0' then to_delete[#to_delete + 1] = 'n' .. id end
  birth, writer, writer_gone, holder_changed = last + 1, nil, true, true
end
--@admit
--@again
if is_granted then
  -- extended
elseif writer or new_writer then
  free_ms = new_writer_ms or writer_ms
elseif foreign_write_until_ms > now_ms then
  free_ms = foreign_write_until_ms
elseif head ~= '-' or mode == 'w' then
  free_ms = foreign_read_until_ms > now_ms and foreign_read_until_ms or read_until_ms or live_reader_ms
  if not free_ms and (head ~= '-' or too_many_dead or in_phase > 0) then free_ms = now_ms end
elseif too_many_dead or waiter_record and in_phase + later_readers > 0 then
  free_ms = live_reader_ms or now_ms
end
if not (is_granted or free_ms) then
  is_granted = true
  if mode == 'w' then
    new_writer, new_writer_ms, new_writer_tokens = id, deadline_ms, wanted_tokens
  else
    read_until_ms = max(read_until_ms or 0, deadline_ms)
    if own_is_dead then -- its record is used again, for a hold that begins now
      if sub(own_since, 1, 1) == '0' then to_delete[#to_delete + 1] = 'n' .. id end
      to_set[#to_set + 1], to_set[#to_set + 2] = 'R' .. id, format('%d %d', deadline_ms, now_ms)
    else
      new_readers, joins = new_readers or {}, id
      new_readers[#new_readers + 1], new_readers[#new_readers + 2] = id, deadline_ms
    end
  end
end
--@readers
--@writer

local flag, flag_token, recalled_ms, can_recall = fields[6], nil, nil, false
if flag then flag_token, recalled_ms = match(flag, '^(%d+) ?(%d*)$') end
local is_recallable = flag_token and tonumber(flag_token) == last
-- A reader that only a waiting writer keeps out does not recall, because that writer recalls.
can_recall = is_recallable and (mode == 'w' or writer)
-- An id that reads does not wait to write.
local is_queued = not is_granted and waiter_ttl_ms > 0 and writer ~= id and not is_reader
local own_until_ms, came_ms
if waiter_record then own_until_ms, came_ms = match(waiter_record, '^(%d+) %d+ (%d+)') end
local is_alive = own_until_ms and own_until_ms + 0 > now_ms
-- No process would reply to this try. A live place of the try stays.
if is_try and not (can_recall or is_alive) then is_queued = false end
if is_queued then
  local until_ms = now_ms + waiter_ttl_ms
  if is_alive then
    until_ms = max(until_ms, own_until_ms + 0)
  else
    if own_until_ms then -- the waiter was dead, and begins anew
      place, next_writer, previous_writer = unpack(call('HMGET', key, 'Q' .. id, 'N' .. id, 'P' .. id))
      --@dequeue
    end
    came_ms = now_ms
    if mode == 'w' then
      if tail == '-' then head = id else to_set[#to_set + 1], to_set[#to_set + 2] = 'N' .. tail, id end
      local n = #to_set
      to_set[n + 1], to_set[n + 2], to_set[n + 3], to_set[n + 4] = 'N' .. id, '-', 'P' .. id, tail
      tail, waiting_writers = id, waiting_writers + 1
    else
      if own_is_dead then -- its record must be gone when the waiter enters
        --@write
        end_slot = format('%d', slots)
        slot, end_reader = unpack(call('HMGET', key, 's' .. id, 'r' .. end_slot))
        --@remove
      end
      later_readers = later_readers + 1
      local n, new_place = #to_set, (phase == 'x' and 'y' or 'x') .. later_readers
      to_set[n + 1], to_set[n + 2], to_set[n + 3], to_set[n + 4] = new_place, id, 'Q' .. id, new_place
    end
  end
  to_set[#to_set + 1], to_set[#to_set + 2] =
    'U' .. id, format('%d %d %d %s', until_ms, math.min(lease_ms + 0, waiter_ttl_ms), came_ms, wanted_tokens)
  alive_until_ms, queue_changed = max(alive_until_ms, until_ms), true
end
-- If a waiter exists, an earlier recallable flag stays as it is, with the time of the last recall.
if is_granted and may_cache and not (is_recallable and waited_for == 1) then
  to_set[#to_set + 1], to_set[#to_set + 2] = 'k', format('%d', last)
end
--@finish

if is_granted then
  --@granted
end
-- The header names a writer and a sole reader. Of several readers, the one that this script has looked at is named.
local named, holders, code, recalled = '', '', is_queued and 'queued' or 'contended', ' 0'
if writer then
  named, holders = sub(holder, 2), ' 1'
elseif foreign_write_until_ms > now_ms then
  named = format(' w %d %d 1 ? %d', foreign_write_until_ms, foreign_write, slots + 1)
elseif foreign_read_until_ms > now_ms and (head ~= '-' or mode == 'w') then
  named = format(' s %d %d ? %d', foreign_read_until_ms, max(foreign_read or 0, covered), slots + 1)
elseif sole then
  if sole_ms > now_ms then named, holders = sub(holder, 2), ' 1' end
elseif new_readers and new_readers[1] then
  named = format(' s %d %d %s %d', new_readers[2], now_ms, new_readers[1], slots)
elseif live_reader then
  named, holders = ' s ' .. live_record .. ' ' .. live_reader .. ' ', end_slot
end
if can_recall and waiter_ttl_ms == 0 then
  code = 'kept'
elseif can_recall and is_queued then
  recalled = ' 1'
  local passed_ms = now_ms - (tonumber(recalled_ms) or 0)
  if is_try or passed_ms < 0 or passed_ms >= RECALL_INTERVAL_MS then
    --@channel
    -- A try always recalls, and gives its id. If the user may not publish, this waiter has not recalled, so others do.
    local published = redis.pcall('SPUBLISH', channel .. ':call', is_try and flag_token .. ' ' .. id or flag_token)
    if type(published) == 'table' then
      unpublished = ' unpublished'
    elseif not is_try then
      call('HSET', key, 'k', format('%s %d', flag_token, now_ms))
    end
  end
end
return code .. ' ' .. id .. ' ' .. seconds .. ' ' .. micros .. format(' %d', max(1, free_ms - now_ms)) .. recalled .. named .. holders
  .. unpublished
