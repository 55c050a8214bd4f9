-- Records the readers that enter, and what all readers of the phase share: token and stamp.
-- Reads: call, key, server_us, now_ms, format, max, new_readers, read_until_ms (nil if no reader enters or extends), joins,
--   live_reader_ms (nil if the phase begins here), recorded_slots, picked, end_reader.
-- Sets: last, birth, kind, slots, sole with its two, stamp_ms, read_stamp, covered, overrun_ms, read, write, foreign_read,
--   end_reader, holder_changed, to_set, to_delete.
if read_until_ms then
  local old_last = last
  if not live_reader_ms then
    if last == 0 then birth = server_us end
    last, stamp_ms, overrun_ms, kind = max(server_us, last + 1), 0, 0, 'r'
  end
  -- `write` is dead by now. It must be absent beside our readers: `renew` and `leave` take it for that of an intruder.
  if write then
    to_delete[#to_delete + 1] = 'write'
    -- `write` was beside recorded readers. Readers from before now were overrun. They learn that at their next request.
    if live_reader_ms then birth, overrun_ms, last = last + 1, now_ms, max(server_us, last + 1) end
    write = nil
  end
  -- Our stamp hides a foreign one, which writers and our last reader must know.
  if foreign_read and foreign_read_until_ms > now_ms then covered = max(foreign_read, covered) end
  -- Our stamp is not below the one that it hides, so it keeps out all clients that this one keeps out.
  foreign_read, stamp_ms, holder_changed = nil, max(stamp_ms, read_until_ms, covered), true
  read_stamp = format('%d.0', stamp_ms) -- no timestamp client writes a fraction, so none takes the stamp for its own
  read = read_stamp
  local n, count = #to_set + 2, new_readers and #new_readers or 0
  to_set[n - 1], to_set[n] = 'read', read
  if last ~= old_last then to_set[n + 1], to_set[n + 2], n = 't', format('%d', last), n + 2 end
  if slots == 0 and count == 2 and stamp_ms == new_readers[2] and covered + overrun_ms == 0 then
    sole, sole_ms, sole_since, slots, count = new_readers[1], new_readers[2], format('%d', now_ms), 1, 0
  elseif sole and (count > 0 or stamp_ms > sole_ms or covered + overrun_ms > 0) then -- it gets a slot
    to_set[n + 1], to_set[n + 2], to_set[n + 3], to_set[n + 4] = 'r1', sole, 's' .. sole, '1'
    to_set[n + 5], to_set[n + 6], n = 'R' .. sole, format('%d %s', sole_ms, sole_since), n + 6
    sole, end_reader = nil, sole
  end
  local first_new = slots
  for m = 1, count, 2 do
    local reader_id, new_slot = new_readers[m], format('%d', slots + 1)
    if reader_id == joins and slots > 0 then
      -- This reader takes a random slot, whose reader moves to the end. So each dead reader is at the end at some time.
      local pick = server_us % slots + 1
      local pick_slot = format('%d', pick)
      local moved = new_readers[2 * (pick - first_new) - 1] or pick == first_new and end_reader
        or slots == recorded_slots and picked or call('HGET', key, 'r' .. pick_slot)
      to_set[n + 1], to_set[n + 2], to_set[n + 3], to_set[n + 4] = 'r' .. new_slot, moved, 's' .. moved, new_slot
      n, new_slot = n + 4, pick_slot
    end
    to_set[n + 1], to_set[n + 2], to_set[n + 3], to_set[n + 4] = 'r' .. new_slot, reader_id, 's' .. reader_id, new_slot
    to_set[n + 5], to_set[n + 6] = 'R' .. reader_id, format('%d %d', new_readers[m + 1], now_ms)
    n, slots = n + 6, slots + 1
  end
end
