#!lua
-- Grants the lock to one acquisition, or gives it a place in the queue, or answers when to ask again. A repeat with the
-- id of a live hold extends the hold. A repeat with the id of a live waiter keeps its place.
-- KEYS: the readers (zset), the writer (string)
-- ARGV: not_after_ms, id, mode ('r' or 'w'), lease_ms, waiter_ttl_ms (0: does not wait), floor (may be missing), 'raise'
--   (may be missing). No new token is below the floor. 'raise' is for a hold that other servers have granted: the token
--   of a live hold or phase is then raised to the floor. It is refused if a force has ended that token here.
-- Returns 'granted id <time> token 1 remaining_ms writers_waiting' (0 or 1) | 'queued id <time> retry_in_ms 0'
--   | 'contended id <time> retry_in_ms 0' | 'late id <time>'; <time> is two words, seconds and microseconds. Behind the refusals
--   a live holder, if one is in the way: ' w deadline_ms since_ms 1 id 1' | ' s deadline_ms 0 id 1'. The id '?' stands for a
--   writer's string of an unknown form
local not_after_ms, id, mode, lease_ms, waiter_ttl_ms = tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local floor, raised = tonumber(ARGV[6] or 0), tonumber(ARGV[7] and ARGV[6] or 0)
local RETENTION_MS, MAX_POPS = 60000, 100

--@begin
local scores = call('ZMSCORE', read_key, '#token', id, '#waits', '#' .. mode .. ' ' .. id, '#u ' .. id, '#next', '#chain', '#forced')
local longest = call('ZREVRANGE', read_key, 0, 0, 'WITHSCORES')
local last, own_ms, waits_ms = -(scores[1] or 0), tonumber(scores[2] or 0), -(scores[3] or 0)
-- A value above now_ms: a reader is live. From 1 to now_ms: only dead readers are recorded. Not above 0: no reader.
local longest_ms = tonumber(longest[2] or 0)
local deadline_ms = now_ms + lease_ms
local free_ms, writers_waiting, notify, unpublished = nil, 0, nil, ''
local by_readers = false -- true if a live reader is in the way
if longest_ms > 0 and scores[1] and scores[1] == scores[8] then
  -- A force has ended all recorded holders but not removed all of them. No client enters before all are removed.
  local ended = call('ZRANGEBYSCORE', read_key, 0, '+inf', 'LIMIT', 0, MAX_POPS)
  for n = 1, #ended do ended[#ended + 1] = '@' .. ended[n] end
  call('ZREM', read_key, unpack(ended))
  longest = call('ZREVRANGE', read_key, 0, 0, 'WITHSCORES')
  own_ms, longest_ms = 0, 0
  if tonumber(longest[2] or -1) >= 0 then free_ms = now_ms end
end

local writer_ms = writer and call('PEXPIRETIME', write_key)
if writer and writer_ms >= 0 and writer_ms <= now_ms then -- dead, but the server has not removed it yet
  call('DEL', write_key)
elseif writer then
  if mode == 'w' and string.sub(writer, 1, #id + 1) == id .. ' ' then
    deadline_ms = math.max(deadline_ms, writer_ms)
    local since_ms, token = string.match(writer, ' (%d+) (%d+)$')
    if raised > tonumber(token) then
      token = string.format('%.0f', raised)
      call('SET', write_key, id .. ' ' .. since_ms .. ' ' .. token, 'PXAT', deadline_ms)
      call('ZADD', read_key, '-' .. token, '#token')
    else
      call('PEXPIREAT', write_key, deadline_ms)
    end
    call('PEXPIREAT', read_key, math.max(deadline_ms, waits_ms) + RETENTION_MS)
    return answer('granted', ' %s 1 %.0f 0', token, deadline_ms - now_ms)
  end
  -- A key that lost its ttl would block for ever. Its lease is not known here, so it gets at least RETENTION_MS.
  if writer_ms < 0 then
    writer_ms = math.max(deadline_ms, now_ms + RETENTION_MS)
    call('PEXPIREAT', write_key, writer_ms)
  end
  free_ms = writer_ms
  if string.sub(writer, 1, #id + 1) == id .. ' ' then waiter_ttl_ms = 0 end -- it would wait for itself
end
if not free_ms and mode == 'w' and longest_ms > now_ms then
  free_ms, by_readers = longest_ms, true
  if own_ms > now_ms then waiter_ttl_ms = 0 end
end
if raised > 0 and own_ms <= now_ms and -math.min((scores[8] or 0) + 0, (call('ZMSCORE', read_key, '#barred')[1] or 0) + 0) >= raised then
  free_ms, waiter_ttl_ms = free_ms or now_ms, 0 -- a force has ended this token
end

local is_written = free_ms and writer and writer_ms > now_ms
-- Returns the words of a refusal behind its time.
local function named()
  if is_written then
    local holder, since_ms = string.match(writer, '^(%S+) (%d+) %d+$')
    return string.format(' 0 w %.0f %s 1 %s 1', writer_ms, since_ms or 0, holder or '?')
  end
  return by_readers and string.format(' 0 s %.0f 0 %s 1', longest_ms, longest[1]) or ' 0'
end

if waits_ms > 0 or (free_ms and waiter_ttl_ms > 0) then
  --@queue
  local alive_until_ms = -(scores[5] or 0) - ALIVE_OFFSET
  local place = alive_until_ms > now_ms and scores[4] or nil
  local came_us = place and place - PLACES[mode][1] or math.huge
  local writer_id, _, writer_us = first('w')
  local reader_id, _, reader_us = first('r')
  if not free_ms and not (mode == 'r' and own_ms > now_ms) then -- the lock is free for this mode, but another waiter may come first
    local passed
    if mode == 'r' then
      passed = writer_id and came_us > opened()
    else
      passed = writer_id and writer_id ~= id and writer_us < came_us or reader_id and reader_us <= opened()
    end
    if passed and too_many_dead then
      free_ms = now_ms
    elseif passed and longest_ms > now_ms then
      free_ms, by_readers = longest_ms, true
    elseif passed and not scores[6] then -- the holder died and notified no waiter
      wake()
      free_ms = now_ms + RESERVED_MS
    elseif passed and -scores[6] > now_ms then
      free_ms = -scores[6]
    end -- else the notified waiter did not come in time, so this one gets the lock
  end

  if free_ms and waiter_ttl_ms > 0 then
    alive_until_ms = math.max(alive_until_ms, now_ms + waiter_ttl_ms)
    waits_ms = math.max(waits_ms, alive_until_ms)
    call('ZADD', read_key, place or PLACES[mode][1] + server_us, '#' .. mode .. ' ' .. id, -(ALIVE_OFFSET + alive_until_ms), '#u ' .. id,
      -waits_ms, '#waits')
    call('PEXPIREAT', read_key, math.max(free_ms, longest_ms, waits_ms) + RETENTION_MS)
    publish()
    return answer('queued', ' %.0f%s%s', math.max(1, free_ms - now_ms), named(), unpublished)
  end
  if not free_ms then
    local gone = {'#next'}
    if scores[4] then gone[2], gone[3] = '#' .. mode .. ' ' .. id, '#u ' .. id end
    if mode == 'w' then gone[#gone + 1] = '#open' end
    if not (writer_id or reader_id) then
      gone[#gone + 1], gone[#gone + 2], gone[#gone + 3] = '#waits', '#open', '#chain'
      waits_ms = 0
    end
    call('ZREM', read_key, unpack(gone))
    if mode == 'r' then
      writers_waiting = writer_id and 1 or 0
      if place and scores[7] then notify_readers('(' .. scores[7], 1) end
    end
  end
  notify = publish
end
if free_ms then
  -- NX: only a key that lost its ttl gets a ttl here.
  call('PEXPIREAT', read_key, math.max(free_ms, longest_ms) + RETENTION_MS, 'NX')
  if notify then notify() end
  return answer('contended', ' %.0f%s%s', math.max(1, free_ms - now_ms), named(), unpublished)
end

if longest_ms > 0 then
  for _, dead in ipairs(call('ZRANGEBYSCORE', read_key, 0, now_ms, 'LIMIT', 0, MAX_POPS)) do
    call('ZREM', read_key, dead, '@' .. dead)
  end
end
local token = math.max(server_us, last + 1, floor)
local birth = last == 0 and '#born' or '#token' -- the first token of the key is kept in addition to the last one
if mode == 'w' then
  -- %.0f, since concatenation would round a number of microseconds to 14 digits.
  call('SET', write_key, string.format('%s %.0f %.0f', id, now_ms, token), 'PXAT', deadline_ms)
  call('ZADD', read_key, -token, '#token', -token, birth)
elseif longest_ms <= now_ms then
  call('ZADD', read_key, -token, '#token', -token, birth, deadline_ms, id, -now_ms, '@' .. id)
else
  token = math.max(last, raised)
  if token > last then call('ZADD', read_key, -token, '#token') end
  if own_ms > now_ms then
    deadline_ms = math.max(deadline_ms, own_ms)
    call('ZADD', read_key, deadline_ms, id)
  else
    call('ZADD', read_key, deadline_ms, id, -now_ms, '@' .. id)
  end
end
call('PEXPIREAT', read_key, math.max(deadline_ms, longest_ms, waits_ms) + RETENTION_MS)
if notify then notify() end
return answer('granted', ' %.0f 1 %.0f %d' .. unpublished, token, deadline_ms - now_ms, writers_waiting)
