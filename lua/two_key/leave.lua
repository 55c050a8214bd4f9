#!lua flags=allow-oom
-- Releases the hold of one acquisition, or removes the acquisition from the queue. The next waiter gets a notification,
-- and asks again. A writer's hold may rest instead: it stays taken until a given time, and no request finds it under its id
-- any more.
-- KEYS: the readers (zset), the writer (string)
-- ARGV: id, until_ms to which a writer's hold rests (may be missing)
-- Returns 'held id <time>' or 'queued id <time>' if it was live until now | 'none id <time> forced_token last_token first_token'
local id, until_ms = ARGV[1], tonumber(ARGV[2] or 0)
local RETENTION_MS = 60000

--@clock
local writer = call('GET', write_key)
local scores = call('ZMSCORE', read_key, '#forced', id, '#waits', '#u ' .. id, '#token', '#born')
local longest = call('ZREVRANGE', read_key, 0, 1, 'WITHSCORES')
-- The longest deadline of another reader; now_ms if no other reader is live.
local others_ms = math.max(now_ms, (longest[1] ~= id and longest[2] or longest[4] or 0) + 0)
local own_ms, waits_ms = tonumber(scores[2] or 0), -(scores[3] or 0)
local own_writer = writer and string.sub(writer, 1, #id + 1) == id .. ' '
local code, writer_released, wrote, rests, unpublished = 'none', false, false, false, ''

if own_writer then
  local writer_ms = call('PEXPIRETIME', write_key)
  local is_live = writer_ms < 0 or writer_ms > now_ms -- else dead, but not removed until now
  wrote, rests = true, is_live and until_ms > now_ms
  writer_released = is_live and not rests
  if is_live then code = 'held' end
  if rests then -- no id begins with an '@', so nothing that is late finds it
    call('SET', write_key, '@' .. writer, 'PXAT', until_ms)
    others_ms = math.max(others_ms, until_ms)
  else
    call('DEL', write_key)
  end
end
if scores[1] and scores[1] == scores[5] then own_ms = 0 end -- a force has ended the hold, but not removed it yet
if scores[2] and not (writer_released or rests) then
  call('ZREM', read_key, id, '@' .. id)
  wrote = true
  if own_ms > now_ms then code = 'held' end
end
if wrote then
  local last_ms = math.max(others_ms, waits_ms)
  -- A reader may release its hold after the deadline, when a writer holds the lock.
  if writer and not own_writer then last_ms = math.max(last_ms, call('PEXPIRETIME', write_key)) end
  call('PEXPIREAT', read_key, last_ms + RETENTION_MS)
end

if scores[3] then
  --@queue
  if scores[4] then
    call('ZREM', read_key, '#w ' .. id, '#r ' .. id, '#u ' .. id)
    if code == 'none' and -scores[4] - ALIVE_OFFSET > now_ms then code = 'queued' end
  end
  local readers_inside = others_ms > now_ms
  local can_enter = not rests and (code == 'queued' or code == 'held' and not readers_inside)
  if can_enter and writer and not own_writer then
    local writer_ms = call('PEXPIRETIME', write_key)
    can_enter = writer_ms >= 0 and writer_ms <= now_ms
  end
  if can_enter then wake(writer_released, readers_inside) end
  publish()
end
if code == 'held' then return 'held ' .. id .. ' ' .. time[1] .. ' ' .. time[2] .. unpublished end
-- NX: only a key that lost its ttl gets a ttl here.
call('PEXPIREAT', write_key, now_ms + RETENTION_MS, 'NX')
call('PEXPIREAT', read_key, math.max(others_ms, call('PEXPIRETIME', write_key)) + RETENTION_MS, 'NX')
if code == 'queued' then return 'queued ' .. id .. ' ' .. time[1] .. ' ' .. time[2] .. unpublished end
return string.format('none %s %s %s %.0f %.0f %.0f%s', id, time[1], time[2], 0 - (scores[1] or 0), 0 - (scores[5] or 0),
  0 - (scores[6] or 0), unpublished)
