#!lua
-- Converts a hold into a hold of the other side, in one step. A writer gets a read hold, and all waiting readers enter
-- beside it. The only reader gets a write hold, unless a writer waits or readers of the phase have not entered. A hold of
-- the same side passes to the new id, and no client enters. A repeat with the new id extends the new hold.
-- KEYS: the lock
-- ARGV: not_after_ms, old id, new id, new mode ('r' or 'w'), lease_ms, tokens (how many a writer wants at most), limits of
--   timestamp clients ('<read_limit_ms> <write_limit_ms>'), 'k' if the new hold may be cached (may be missing)
-- Returns 'granted new-id <time> last_token tokens remaining_ms waited_for' (0 or 1) | 'refused new-id <time>'
--   | 'kept new-id <time>' | 'lost new-id <time> forced_token' | 'late new-id <time>' | 'version new-id <time>'
local old, id, mode = ARGV[2], ARGV[3], ARGV[4]
local wanted_tokens, limits, may_cache = ARGV[6], ARGV[7], ARGV[8]
local RETENTION_MS, MAX_TOKENS = 60000, 2048

--@clock
if now_ms > ARGV[1] + 0 then return 'late ' .. id .. ' ' .. seconds .. ' ' .. micros end

local last, holder, queue, write, read, stored, old_record, forced, flag =
  unpack(call('HMGET', key, 't', 'h', 'u', 'write', 'read', 'R' .. id, 'R' .. old, 'F', 'k'))
local deadline_ms, is_granted, free_ms, asked_mode = now_ms + ARGV[5], false, nil, nil
last = tonumber(last or 0)
--@state
--@dead
-- A writer's hold has the new id from here on, so that dead waiters go, as before a request of its holder.
local writes = mode == 'w' and writer == old and write == writer_stamp and id ~= old
if writes then writer = id end

if sole == id then stored = format('%d %d', sole_ms, sole_since) end
if sole == old then old_record = format('%d %s', sole_ms, sole_since) end
-- Returns the deadline of a live reader beside which no intruder is or was, and the time of its grant.
local function held_until(record)
  local ends_ms, since = match(record or '', '^(%d+) (%d+)$')
  if ends_ms and kind ~= 'x' and ends_ms + 0 > now_ms and not write and since + 0 >= overrun_ms then
    return ends_ms + 0, since
  end
end
own_ms, own_since = held_until(stored)
local old_ms = held_until(old_record)
--@admit
--@again
if writes then is_granted, deadline_ms = false, now_ms + ARGV[5] end -- the hold begins anew
for n = 1, new_readers and #new_readers or 0, 2 do
  if new_readers[n] == old then old_ms = new_readers[n + 1] end
end
--@readers
--@writer
local is_downgrade = not is_granted and mode == 'r' and writer == old and write == writer_stamp
local is_upgrade = not is_granted and mode == 'w' and old_ms ~= nil
-- The old writer may have entered just now.
writes = writes or mode == 'w' and writer == old and write == writer_stamp and id ~= old
local passes = not is_granted and (writes or mode == 'r' and old_ms ~= nil and not stored)
local has_note = sub((is_downgrade or writes) and since_ms or old_record or '', -14, -14) == '0'
if is_downgrade or is_upgrade or passes then
  -- Pending fields are written before records are removed: `read` of new readers, and the links of the queue.
  --@write
  live_reader_ms, new_readers, read_until_ms = read_until_ms or live_reader_ms, nil, nil
  is_granted = is_downgrade or passes or in_phase == 0 and head == '-' and foreign_read_until_ms <= now_ms
  if is_upgrade and is_granted and not sole then -- is no other reader live? `old` goes to the first slot, dead ones go
    slot = call('HGET', key, 's' .. old)
    if slot ~= '1' then
      local moved = call('HGET', key, 'r1')
      call('HSET', key, 'r1', old, 's' .. old, '1', 'r' .. slot, moved, 's' .. moved, slot)
    end
    while is_granted and slots > 1 do
      local other = call('HGET', key, 'r' .. slots)
      if match(call('HGET', key, 'R' .. other), '^%d+') + 0 > now_ms or records_left == 0 then
        is_granted = false
      else
        call('HDEL', key, 'r' .. slots, 's' .. other, 'R' .. other, 'n' .. other)
        slots, records_left, holder_changed = slots - 1, records_left - 1, true
      end
    end
    if is_granted then to_delete = {'r1', 's' .. old, 'R' .. old} end
  end
end
if is_granted and (is_downgrade or is_upgrade or passes) then
  if head ~= '-' or in_phase + later_readers > 0 then
    waiter_record, place, next_writer, previous_writer =
      unpack(call('HMGET', key, 'U' .. id, 'Q' .. id, 'N' .. id, 'P' .. id))
    if waiter_record then -- a new hold has no place in the queue
      --@dequeue
    end
  end
  if mode == 'w' then
    new_writer, new_writer_ms, new_writer_tokens = id, deadline_ms, wanted_tokens
  elseif passes then -- the phase goes on, and keeps its token
    if sole then
      sole, sole_ms, sole_since, holder_changed = id, deadline_ms, format('%d', now_ms), true
    else
      slot = call('HGET', key, 's' .. old)
      local n, m = #to_set, #to_delete
      to_set[n + 1], to_set[n + 2], to_set[n + 3], to_set[n + 4] = 'r' .. slot, id, 's' .. id, slot
      to_set[n + 5], to_set[n + 6] = 'R' .. id, format('%d %d', deadline_ms, now_ms)
      to_delete[m + 1], to_delete[m + 2] = 's' .. old, 'R' .. old
    end
    live_reader_ms, read_until_ms = deadline_ms, deadline_ms
    --@readers
  else
    writer, writer_gone, live_reader_ms, new_readers, read_until_ms = nil, true, nil, {id, deadline_ms}, deadline_ms
    --@admit
    --@readers
  end
  --@writer
  if has_note then -- the note goes with the hold. Another process may count its notes anew
    local n, note = #to_set, call('HGET', key, 'n' .. old)
    if passes then note = '0' .. match(note, ' .*$') end
    to_set[n + 1], to_set[n + 2], to_delete[#to_delete + 1] = 'n' .. id, note, 'n' .. old
    if mode == 'w' then
      since_ms = '0' .. since_ms
    elseif sole then
      sole_since = '0' .. sole_since
    else
      to_set[n + 3], to_set[n + 4] = 'R' .. id, format('%d 0%d', deadline_ms, now_ms)
    end
  end
end

local flag_token = match(flag or '', '^%d+')
-- As in `acquire`.
if is_granted and may_cache and (waited_for == 0 or tonumber(flag_token) ~= last) then
  to_set[#to_set + 1], to_set[#to_set + 2] = 'k', format('%d', last)
end
--@finish

if is_granted then
  --@granted
elseif not is_upgrade then
  return format('lost %s %s %s %s%s', id, seconds, micros, forced or 0, unpublished)
end
if tonumber(flag_token) ~= last then return 'refused ' .. id .. ' ' .. seconds .. ' ' .. micros .. unpublished end
-- Perhaps no guard uses the hold that is in the way. So the script recalls it, as for a try.
--@channel
local published = redis.pcall('SPUBLISH', channel .. ':call', flag_token .. ' ' .. id)
if type(published) == 'table' then unpublished = ' unpublished' end
return 'kept ' .. id .. ' ' .. seconds .. ' ' .. micros .. unpublished
