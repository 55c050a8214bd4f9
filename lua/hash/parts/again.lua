-- Extends a live hold of `id`. Never shortens it.
-- Reads: id, mode, max, format, write, writer, writer_stamp, own_since, own_enters, sole, new_writer.
-- Sets: is_granted, deadline_ms, writer_ms, new_writer_ms, read_until_ms, live_reader_ms, sole_ms, holder_changed, to_set.
if mode == 'w' and new_writer == id then
  is_granted, deadline_ms = true, max(deadline_ms, new_writer_ms)
  new_writer_ms = deadline_ms
elseif mode == 'w' and writer == id and write == writer_stamp then
  is_granted, deadline_ms, holder_changed = true, max(deadline_ms, writer_ms), true
  writer_ms = deadline_ms
  to_set[#to_set + 1], to_set[#to_set + 2] = 'write', format('%d', deadline_ms)
elseif mode == 'r' and own_ms then
  is_granted, deadline_ms = true, max(deadline_ms, own_ms)
  read_until_ms = max(read_until_ms or 0, deadline_ms)
  if not own_enters then
    live_reader_ms = own_ms
    if sole then
      sole_ms = deadline_ms
    else
      to_set[#to_set + 1], to_set[#to_set + 2] = 'R' .. id, format('%d %s', deadline_ms, own_since)
    end
  end
end
