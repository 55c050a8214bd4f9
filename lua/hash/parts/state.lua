-- Takes the headers apart, and declares the locals that the parts share. Ends the script at another layout.
-- Reads: call, key, id, seconds, micros, limits (of timestamp clients), format, match, sub, max; from the lock, false if
--   absent: holder, queue, write, read.
-- Sets: all locals below.
local MAX_RECORDS = 96 -- the readers and waiters that one script removes or lets in, live or dead
local MIN_TABLE = 8 -- as many readers or waiters make the hash a table
local records_left = MAX_RECORDS
-- Pending writes; the part `write` deletes first. Pairs: field, value.
local to_set, to_delete = {}, {}
local holder_changed, queue_changed, ttl_stays = false, false, false
local birth -- the first token that is known, if this script changes it

-- Clients that enter. new_readers: id, deadline. admitted, for those that waited: id, deadline. to_notify: id, message.
local new_writer, new_writer_ms, new_writer_tokens, new_readers, admitted, to_notify
local read_until_ms -- the longest deadline of the readers that enter or extend
local next_reader -- the waiting reader that shall ask again
local joins -- the id that takes a random slot
local waited_for -- 1 if the hold keeps a waiter out, else 0
local live_reader_ms, too_many_dead -- the deadline of a live reader; true if only dead ones are found and more are left
local live_reader, live_record -- the id and the record of this reader, if it has a slot
local unpublished = '' -- the last word of the answer, if the server has refused a notification
local writer_gone = false -- true if the hold of a writer ends in this script

-- Records of the caller, of the last slots and of the first waiting writer. The script reads those that it needs.
local own_record, own_ms, own_since, own_is_dead, own_enters
local waiter_record, place, next_writer, previous_writer
local slot, end_reader, before_end, picked, head_record, head_next

-- writer_stamp and read_stamp are the texts that `write` and `read` have if they are ours.
local writer, writer_ms, writer_stamp, since_ms, tokens, read_stamp
local kind, slots, end_slot, stamp_ms, covered, overrun_ms, sole, sole_ms, sole_since = nil, 0, '0', 0, 0, 0
if holder then
  kind = sub(holder, 1, 2) == '3 ' and sub(holder, 3, 3)
  if kind == 'w' then
    writer_stamp, since_ms, tokens, writer = match(holder, '^3 w (%d+) (%d+) (%d+) (.*)$')
    writer_ms = writer_stamp + 0
  elseif kind == 's' then -- one reader alone has no slot
    sole_ms, sole_since, sole = match(holder, '^3 s (%d+) (%d+) (.*)$')
    read_stamp, slots, end_slot, sole_ms = sole_ms .. '.0', 1, '1', sole_ms + 0
    stamp_ms = sole_ms
  elseif kind then
    end_slot, read_stamp, covered, overrun_ms = match(holder, '^3 %a (%d+) (%d+%.0) (%d+) (%d+)$')
    slots, stamp_ms, covered, overrun_ms = end_slot + 0, read_stamp + 0, covered + 0, overrun_ms + 0
  end
end
-- The readers of the current phase wait in the array `phase`, those that have come since in the other one. Writers wait
-- in a list from `head` to `tail`.
local alive_until_ms, phase, in_phase, later_readers, waiting_writers, head, tail = 0, 'x', 0, 0, 0, '-', '-'
if queue then
  alive_until_ms, phase, in_phase, later_readers, waiting_writers, head, tail =
    match(queue, '^3 (%d+) (%a) (%d+) (%d+) (%d+) (%S+) (%S+)$')
  if tail then
    alive_until_ms, in_phase, later_readers, waiting_writers =
      alive_until_ms + 0, in_phase + 0, later_readers + 0, waiting_writers + 0
  else
    kind = false
  end
end

-- The first layout had no header, but its holders have stamped the lock.
if kind == nil and (write or read) then
  local first_layout = call('HMGET', key, 'W', 'a')
  if first_layout[1] or first_layout[2] then kind = false end
end
if kind == false then return 'version ' .. (id == '' and '-' or id) .. ' ' .. seconds .. ' ' .. micros end

local recorded_slots, recorded_waiters = slots, in_phase + later_readers + waiting_writers

-- At its limit a foreign stamp counts, as among timestamp clients.
local foreign_write, foreign_read, foreign_write_until_ms, foreign_read_until_ms = nil, nil, 0, 0
if covered > 0 or write and write ~= writer_stamp or read and read ~= read_stamp then
  --@stamp_of
  local read_limit_ms, write_limit_ms = match(limits, '^(%d+) (%d+)$')
  if write and write ~= writer_stamp then
    foreign_write = stamp_of(write)
    foreign_write_until_ms = foreign_write + write_limit_ms + 1
  end
  if read and read ~= read_stamp then foreign_read = stamp_of(read) end
  if foreign_read or covered > 0 then foreign_read_until_ms = max(foreign_read or 0, covered) + read_limit_ms + 1 end
end
