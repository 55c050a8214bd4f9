-- Records the writer that enters. Composes the notifications of the waiters that have entered.
-- Reads: server_us, now_ms, format, max, MAX_TOKENS, new_writer and its two, admitted, read; the queue's counts.
-- Sets: last, birth, tokens, writer, writer_ms, writer_stamp, since_ms, slots, sole, kind, write, read, foreign_read,
--   new_writer (nil again), holder_changed, waited_for, admitted, to_notify, to_set, to_delete.
if new_writer then -- every other recorded client is dead
  local known = last
  last = max(server_us, known + 1)
  -- Tokens reach back and never ahead of the clock: after a loss of this record the next ones are higher.
  if known == 0 then
    birth, tokens = last, 1
  else
    tokens = max(1, math.min(new_writer_tokens + 0, MAX_TOKENS, last - known))
  end
  if read then to_delete[#to_delete + 1] = 'read' end
  writer, writer_ms, since_ms = new_writer, new_writer_ms, format('%d', now_ms)
  slots, sole, kind, holder_changed = 0, nil, 'w', true
  foreign_read, covered = nil, 0 -- all that has stamped the lock is dead, and `convert` may let in readers yet
  writer_stamp = format('%d', writer_ms)
  write, read, new_writer = writer_stamp, nil, nil
  local n = #to_set
  to_set[n + 1], to_set[n + 2], to_set[n + 3], to_set[n + 4] = 'write', write, 't', format('%d', last)
end
waited_for = (head ~= '-' or writer and in_phase + later_readers > 0 and alive_until_ms > now_ms) and 1 or 0
for n = 1, admitted and #admitted or 0, 2 do
  to_notify[#to_notify + 1], to_notify[#to_notify + 2] = admitted[n],
    format('%s %d %d %d %d %d', admitted[n], last, writer and tokens or 1, admitted[n + 1], server_us, waited_for)
end
admitted = nil
