-- Writes the headers, the ttl and all that is pending. Publishes the notifications at last.
-- Reads: call, key, id, now_ms, format, sub, max, RETENTION_MS, free_ms (when the lock may be free if nothing has changed),
--   ttl_stays, and what the parts before have set.
-- Sets: to_set, to_delete, to_notify, alive_until_ms, unpublished, holder (the new header).
if holder_changed then
  local header
  if writer then
    header = format('3 w %d %s %04d %s', writer_ms, since_ms, tokens, writer)
  elseif sole then
    header = format('3 s %d %s %s', sole_ms, sole_since, sole)
  elseif slots > 0 then
    header = format('3 %s %d %s %d %d', kind == 'x' and 'x' or 'r', slots, read_stamp, covered, overrun_ms)
  elseif kind and kind ~= 'w' and not foreign_read then -- a foreign reader whose stamp ours hid may still be inside
    if covered > 0 then
      to_set[#to_set + 1], to_set[#to_set + 2] = 'read', format('%d', covered)
    elseif read then
      to_delete[#to_delete + 1] = 'read'
    end
  end
  -- A hash of short fields is a list that is searched from end to end. One value of more than 64 bytes makes it a table.
  if slots >= MIN_TABLE and recorded_slots < MIN_TABLE then
    to_set[#to_set + 1], to_set[#to_set + 2] = 'h', string.rep('0', 65)
  end
  if header then
    to_set[#to_set + 1], to_set[#to_set + 2] = 'h', header
  elseif holder then
    to_delete[#to_delete + 1] = 'h'
  end
  holder = header
end
if queue_changed then
  local count = in_phase + later_readers + waiting_writers
  if count >= MIN_TABLE and recorded_waiters < MIN_TABLE then
    to_set[#to_set + 1], to_set[#to_set + 2] = 'u', string.rep('0', 65)
  end
  if count > 0 then
    to_set[#to_set + 1], to_set[#to_set + 2] = 'u',
      format('3 %d %s %d %d %d %s %s', alive_until_ms, phase, in_phase, later_readers, waiting_writers, head, tail)
  else
    to_delete[#to_delete + 1], alive_until_ms = 'u', 0
  end
end
if birth then to_set[#to_set + 1], to_set[#to_set + 2] = 'b', format('%d', birth) end
--@write
if not ttl_stays then
  local ends_ms = max(now_ms, writer and writer_ms or 0, slots > 0 and stamp_ms or 0, alive_until_ms)
  if holder_changed or queue_changed then
    call('PEXPIREAT', key, format('%d', ends_ms + RETENTION_MS))
  else -- NX: only a key that lost its ttl gets one here
    call('PEXPIREAT', key, format('%d', max(ends_ms, free_ms or 0) + RETENTION_MS), 'NX')
  end
end
if next_reader and next_reader ~= id then
  to_notify = to_notify or {}
  to_notify[#to_notify + 1], to_notify[#to_notify + 2] = next_reader, next_reader
end
if to_notify then
  --@channel
  for n = 1, #to_notify, 2 do
    local published = redis.pcall('SPUBLISH', channel .. ':wake:' .. sub(to_notify[n], 1, 32), to_notify[n + 1])
    if type(published) == 'table' then unpublished = ' unpublished' end
  end
end
