-- Keeps the readers' key as long as the extended hold needs it, and answers.
-- Reads: call, read_key, id, time, deadline_ms, longest_ms, now_ms, RETENTION_MS.
-- Sets: nothing.
call('PEXPIREAT', read_key, math.max(deadline_ms, longest_ms) + RETENTION_MS)
return string.format('renewed %s %s %s %.0f', id, time[1], time[2], deadline_ms - now_ms)
