-- Lets the lock live as long as the hold, and the tokens longer. Never shortens the time of the lock.
-- Reads: call, key, own_ms, RETENTION_MS; KEYS[2], the tokens.
-- Sets: left_ms, how long the lock lives.
if left_ms < own_ms then
  left_ms = own_ms
  call('PEXPIRE', key, string.format('%.0f', left_ms))
end
call('PEXPIRE', KEYS[2], string.format('%.0f', left_ms + RETENTION_MS))
