-- Answers that the hold is granted.
-- Reads: format, id, seconds, micros, last, mode, tokens, deadline_ms, now_ms, waited_for, unpublished.
-- Sets: nothing.
return format('granted %s %s %s %d %d %d %d%s', id, seconds, micros, last, mode == 'w' and tokens or 1,
  deadline_ms - now_ms, waited_for, unpublished)
