-- Ends the hold of a dead writer. Its own stamp goes, but no other.
-- Reads: now_ms, sub, writer_ms, writer_stamp, since_ms.
-- Sets: writer, write, writer_gone, holder_changed, to_delete.
if writer and writer_ms <= now_ms then
  if write == writer_stamp then to_delete[1], write = 'write', nil end
  if sub(since_ms, 1, 1) == '0' then to_delete[#to_delete + 1] = 'n' .. writer end
  writer, writer_gone, holder_changed = nil, true, true
end
