#!lua
-- Converts a hold into a hold of the other side, in one step. A writer gets a read hold, and the only reader gets a write
-- hold. A hold of the same side passes to the new id. A repeat with the new id extends the new hold. Waiting readers that
-- may enter get a notification, and ask again.
-- KEYS: the readers (zset), the writer (string)
-- ARGV: not_after_ms, old id, new id, new mode ('r' or 'w'), lease_ms
-- Returns 'granted new-id <time> token 1 remaining_ms writers_waiting' (0 or 1) | 'refused new-id <time>'
--   | 'lost new-id <time> forced_token' | 'late new-id <time>'
local not_after_ms, old, id, mode, lease_ms = tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local RETENTION_MS, unpublished = 60000, ''

--@begin
local scores = call('ZMSCORE', read_key, '#token', '#forced', id, old, '#waits')
local longest = call('ZREVRANGE', read_key, 0, 1, 'WITHSCORES')
local longest_ms = math.max(now_ms, (longest[2] or 0) + 0)
local own_ms, old_ms = tonumber(scores[3] or 0), tonumber(scores[4] or 0)
-- A force has ended all recorded readers, even those that it has not removed yet.
if scores[2] and scores[2] == scores[1] then own_ms, old_ms = 0, 0 end
local token = math.max(server_us, 1 - (scores[1] or 0))
local deadline_ms, waits_ms = now_ms + lease_ms, -(scores[5] or 0)

local writer_ms = writer and call('PEXPIRETIME', write_key) or 0
local writer_lives = writer_ms < 0 or writer_ms > now_ms -- else dead, but not removed yet
local function writes(holder_id)
  return writer and writer_lives and string.sub(writer, 1, #holder_id + 1) == holder_id .. ' '
end

--@queue

if mode == 'w' and writes(id) then
  token, deadline_ms = tonumber(string.match(writer, '%d+$')), math.max(deadline_ms, writer_ms)
  call('PEXPIREAT', write_key, deadline_ms)
elseif mode == 'r' and own_ms > now_ms then
  token, deadline_ms = -scores[1], math.max(deadline_ms, own_ms)
  call('ZADD', read_key, deadline_ms, id)
elseif mode == 'r' and writes(old) then
  call('DEL', write_key)
  call('ZADD', read_key, -token, '#token', deadline_ms, id, -now_ms, '@' .. id)
elseif mode == 'r' and old_ms > now_ms then -- the phase keeps its token
  token = -scores[1]
  call('ZREM', read_key, old, '@' .. old)
  call('ZADD', read_key, deadline_ms, id, -now_ms, '@' .. id)
elseif mode == 'w' and writes(old) then
  call('SET', write_key, string.format('%s %.0f %.0f', id, now_ms, token), 'PXAT', deadline_ms)
  call('ZADD', read_key, -token, '#token')
elseif mode == 'w' and old_ms > now_ms then
  local others_ms = tonumber(longest[1] ~= old and longest[2] or longest[4] or 0)
  if others_ms > now_ms or scores[5] and first('w') then
    call('PEXPIREAT', read_key, longest_ms + RETENTION_MS, 'NX') -- NX: only a key that lost its ttl gets a ttl
    return answer('refused', '')
  end
  call('ZREM', read_key, old, '@' .. old)
  -- %.0f, since concatenation would round a number of microseconds to 14 digits.
  call('SET', write_key, string.format('%s %.0f %.0f', id, now_ms, token), 'PXAT', deadline_ms)
  call('ZADD', read_key, -token, '#token')
else -- NX as above
  call('PEXPIREAT', write_key, now_ms + RETENTION_MS, 'NX')
  call('PEXPIREAT', read_key, math.max(longest_ms, call('PEXPIRETIME', write_key)) + RETENTION_MS, 'NX')
  return answer('lost', ' %.0f', 0 - (scores[2] or 0))
end
call('PEXPIREAT', read_key, math.max(deadline_ms, longest_ms, waits_ms) + RETENTION_MS)
local writers_waiting = 0
if mode == 'r' and scores[5] then
  if writes(old) then
    wake(true, true)
    publish()
  end
  writers_waiting = first('w') and 1 or 0
end
return answer('granted', ' %.0f 1 %.0f %d' .. unpublished, token, deadline_ms - now_ms, writers_waiting)
