-- Ends the hold of a dead writer. Its own stamp goes, but no other.
-- Reads: now_ms, writer_ms, writer_stamp.
-- Sets: writer, write, writer_gone, holder_changed, to_delete.
if writer and writer_ms <= now_ms then
  if write == writer_stamp then to_delete[1], write = 'write', nil end
  writer, writer_gone, holder_changed = nil, true, true
end
