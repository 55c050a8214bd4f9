#!lua
-- Takes the lock for one acquisition, or a place in its queue, or tells when to ask again. A repeat with the id of a live hold
-- extends it, one with the id of a live waiter keeps it alive.
-- KEYS: the lock
-- ARGV: not_after_ms, id, mode ('r' or 'w'), lease_ms, patience_ms (0: does not wait), turns (how many tokens a writer wants at most),
--   published limits ('<read_limit_ms> <write_limit_ms>'), letters (may be missing: 'k' for who may keep the hold, 't' for a try, which
--   waits only where it calls, or 'kt')
-- Returns 'granted id <time> last_token turns remaining_ms waited_for' (its tokens; 0 or 1) | 'queued id <time> retry_in_ms'
--   (and ' 1' where it calls or others have) | 'contended id <time> retry_in_ms' | 'kept id <time> retry_in_ms' | 'late id <time>' | 'version id <time>'; the time in two words,
--   seconds and microseconds
local call, key, id, mode, lease_ms = redis.call, KEYS[1], ARGV[2], ARGV[3], ARGV[4]
local RETENTION_MS, MOST_TURNS, format, sub = 60000, 64, string.format, string.sub
local CALL_MS = 500 -- those who wait call no more often

local time = call('TIME')
local seconds, micros = time[1], time[2]
local server_us = seconds * 1000000 + micros
local now_ms = (server_us - server_us % 1000) / 1000
if now_ms > ARGV[1] + 0 then return 'late ' .. id .. ' ' .. seconds .. ' ' .. micros end

local letters = ARGV[8]
local keeps, tries = letters and letters ~= 't', letters and letters ~= 'k'
local fields, own, mark
if ARGV[5] == '0' or tries then -- a refusal tells of the mark
  if mode == 'w' then
    fields = call('HMGET', key, 't', 'h', 'u', 'write', 'read', 'k')
  else
    fields = call('HMGET', key, 't', 'h', 'u', 'write', 'read', 'k', 'R' .. id)
  end
  mark, own = fields[6], fields[7]
elseif mode == 'w' then
  fields = call('HMGET', key, 't', 'h', 'u', 'write', 'read')
else
  fields = call('HMGET', key, 't', 'h', 'u', 'write', 'read', 'R' .. id)
  own = fields[6]
end
local last, holder, queue, write, read = fields[1], fields[2], fields[3], fields[4], fields[5]
local deadline_ms = now_ms + lease_ms
-- The ways that are gone most often are straight lines. Numbers become texts once and where it is cheap, and a text of the server's
-- time is put together from its two words: each format costs as much as two more fields to read.

if not (holder or queue or write or read) then -- free, and nothing foreign
  local token, turns = seconds .. micros, '01'
  if #micros < 6 then token = format('%s%06d', seconds, micros) end
  local ends, since = format('%d', deadline_ms), sub(token, 1, -4)
  if last then
    local passed = server_us - last
    if passed < 1 then passed, token = 1, format('%d', last + 1) end
    -- Tokens reach back and never ahead of the clock: after a loss of this record the next are higher.
    turns = ARGV[6]
    if passed < MOST_TURNS or #turns ~= 2 or turns > '64' then
      turns = format('%02d', math.max(1, math.min(turns, MOST_TURNS, passed)))
    end
  end
  if mode == 'w' then
    call('HSET', key, 't', token, 'h', '2 w ' .. ends .. ' ' .. since .. ' ' .. turns .. ' ' .. id, 'write', ends)
  else
    turns = '1'
    call('HSET', key, 't', token, 'h', '2 s ' .. ends .. ' ' .. since .. ' ' .. id, 'read', ends .. '.0')
  end
  if not last then call('HSET', key, 'b', token) end -- since when the lock is known
  if keeps then call('HSET', key, 'k', token) end
  call('PEXPIREAT', key, format('%d', deadline_ms + RETENTION_MS))
  return 'granted ' .. id .. ' ' .. seconds .. ' ' .. micros .. ' ' .. token .. ' ' .. turns .. ' ' .. lease_ms .. ' 0'
end

local patience_ms = tonumber(ARGV[5])
if tries and not (mark and string.match(mark, '^%d+') == last)
  and tonumber(string.match(call('HGET', key, 'U' .. id) or '0', '^%d+')) <= now_ms then
  patience_ms = 0 -- nobody would answer it; a place that it has stays
end

-- Short ways, which come to what the long way below does.
local ends, who = string.match(holder or '', '^2 w (%d+) %d+ %d+ (.*)$')
if who and who ~= id and tonumber(ends) > now_ms then -- a writer is inside
  if patience_ms == 0 then
    local free_ms = tonumber(ends)
    call('PEXPIREAT', key, string.format('%d', free_ms + RETENTION_MS), 'NX') -- only a key that lost its ttl gets one here
    local code = mark and string.match(mark, '^%d+') == last and 'kept' or 'contended'
    return string.format('%s %s %s %s %d', code, id, seconds, micros, free_ms - now_ms)
  end
  local about
  about, mark = unpack(call('HMGET', key, 'U' .. id, 'k'))
  local heard, turn, in_turn, waiting, writers, head, tail =
    string.match(queue or '2 0 x 0 0 0 - -', '^2 (%d+) (%a) (%d+) (%d+) (%d+) (%S+) (%S+)$')
  local until_ms, since = string.match(about or '', '^(%d+) %d+ (%d+)')
  local is_marked = mark and string.match(mark, '^%d+') == last -- then it is called, which the long way does
  if heard and not own and not is_marked and (not about or tonumber(until_ms) > now_ms) then
    local free_ms, lives_ms = tonumber(ends), math.max(until_ms or 0, now_ms + patience_ms)
    heard = math.max(heard, lives_ms)
    about = string.format('%d %d %s %s', lives_ms, math.min(lease_ms, patience_ms), since or now_ms, ARGV[6])
    if until_ms then -- a heartbeat
      call('HSET', key, 'U' .. id, about, 'u', string.format('2 %d %s %s %s %s %s %s', heard, turn, in_turn, waiting, writers, head, tail))
    else
      -- A hash of short fields is a list that is searched from end to end. One value of more than 64 bytes makes it a table for good.
      local first_value = in_turn + waiting + writers == 7 and string.rep('0', 65) or ''
      if mode == 'w' then
        local prev = tail
        if prev == '-' then head = id end
        call('HSET', key, 'u', first_value, 'U' .. id, about, 'P' .. id, prev, 'N' .. (prev == '-' and id or prev), id, 'N' .. id, '-',
          'u', string.format('2 %d %s %s %s %d %s %s', heard, turn, in_turn, waiting, writers + 1, head, id))
      else
        local place = (turn == 'x' and 'y' or 'x') .. (waiting + 1)
        call('HSET', key, 'u', first_value, 'U' .. id, about, place, id, 'Q' .. id, place,
          'u', string.format('2 %d %s %s %d %s %s %s', heard, turn, in_turn, waiting + 1, writers, head, tail))
      end
    end
    call('PEXPIREAT', key, string.format('%d', math.max(free_ms, heard) + RETENTION_MS))
    return string.format('queued %s %s %s %d', id, seconds, micros, free_ms - now_ms)
  end
elseif mode == 'r' and read and not (queue or write) then
  local sole_ends, sole_since, sole = string.match(holder or '', '^2 s (%d+) (%d+) (.*)$')
  local slots, stamp = string.match(holder or '', '^2 r (%d+) (%d+%.0) 0 0$')
  if sole and read == sole_ends .. '.0' and tonumber(sole_ends) > now_ms and not own then -- one reader is inside
    if sole == id then -- a repeat
      deadline_ms = math.max(deadline_ms, sole_ends)
      local text = string.format('%d', deadline_ms)
      call('HSET', key, 'h', '2 s ' .. text .. ' ' .. sole_since .. ' ' .. id, 'read', text .. '.0')
    else
      local stamp_ms = math.max(deadline_ms, sole_ends)
      local text = string.format('%d.0', stamp_ms)
      call('HSET', key, 'h', '2 r 2 ' .. text .. ' 0 0', 'r2', sole, 's' .. sole, '2', 'R' .. sole, sole_ends .. ' ' .. sole_since,
        'r1', id, 's' .. id, '1', 'R' .. id, string.format('%d %d', deadline_ms, now_ms), 'read', text)
      sole_ends = stamp_ms
    end
    call('PEXPIREAT', key, string.format('%d', math.max(deadline_ms, sole_ends) + RETENTION_MS))
    if keeps then call('HSET', key, 'k', last) end
    return string.format('granted %s %s %s %s 1 %d 0', id, seconds, micros, last, deadline_ms - now_ms)
  elseif stamp == read and tonumber(stamp) > now_ms then
    stamp = math.max(stamp, deadline_ms)
    local text = string.format('%d.0', stamp)
    local own_ms, own_since = string.match(own or '', '^(%d+) (%d+)$')
    if own_ms and tonumber(own_ms) > now_ms then -- a repeat
      deadline_ms = math.max(deadline_ms, own_ms)
      call('HSET', key, 'R' .. id, string.format('%d %s', deadline_ms, own_since), 'h', '2 r ' .. slots .. ' ' .. text .. ' 0 0', 'read', text)
      call('PEXPIREAT', key, string.format('%d', stamp + RETENTION_MS))
      if keeps then call('HSET', key, 'k', last) end
      return string.format('granted %s %s %s %s 1 %d 0', id, seconds, micros, last, deadline_ms - now_ms)
    elseif not own then
      -- The newcomer takes any slot and sends its reader to the end: sooner or later each dead one is looked at.
      local pick = server_us % slots + 1
      local ends = call('HMGET', key, 'r' .. slots, 'r' .. pick)
      local witness_ms = string.match(call('HGET', key, 'R' .. ends[1]), '^%d+')
      if tonumber(witness_ms) > now_ms and slots ~= '7' then -- the eighth makes the hash a table
        slots, pick = string.format('%d', slots + 1), string.format('%d', pick)
        call('HSET', key, 'h', '2 r ' .. slots .. ' ' .. text .. ' 0 0', 'r' .. slots, ends[2], 's' .. ends[2], slots, 'r' .. pick, id,
          's' .. id, pick, 'R' .. id, string.format('%d %d', deadline_ms, now_ms), 'read', text)
        call('PEXPIREAT', key, string.format('%d', stamp + RETENTION_MS))
        if keeps then call('HSET', key, 'k', last) end
        return string.format('granted %s %s %s %s 1 %s 0', id, seconds, micros, last, lease_ms)
      end
    end
  end
end

local turns, limits = ARGV[6], ARGV[7]
--@queue

local function granted(turns)
  local waited_for = (next_writer() or writer and in_turn + waiting > 0 and heard_ms > now_ms) and 1 or 0
  -- Where somebody waits, a mark that is there stays, and when it was called for.
  if keeps and (waited_for == 0 or tonumber(string.match(redis.call('HGET', key, 'k') or '', '^%d+')) ~= last) then set('k', last) end
  finish()
  return string.format('granted %s %s %s %.0f %d %.0f %d', id, seconds, micros, last, turns, deadline_ms - now_ms, waited_for)
end

local own_ms, own_since = string.match(own or '', '^(%d+) (%d+)$')
own_ms = tonumber(own_ms or 0)
if writer == id and mode == 'w' and write ~= writer_ends then
  -- Our stamp is gone: somebody may have been inside, so this is a new acquisition.
  disown()
  writer = nil
  begin_turn()
elseif own_ms > now_ms and not ended and (write or tonumber(own_since) < overrun_ms) then
  -- An intruder was beside it: likewise. And never with the old token, whoever else reads.
  if write then
    disown()
    last = math.max(server_us, last + 1)
  end
  remove_reader(id, redis.call('HGET', key, 's' .. id))
  own_ms = 0
end
admit()

if writer == id and mode == 'w' then
  deadline_ms = math.max(deadline_ms, writer_ms)
  writer_ms, stamped, touched = deadline_ms, true, true
  return granted(block)
end
if mode == 'r' and own and not ended then
  own_ms, own_since = string.match(own, '^(%d+) (%d+)$')
  own_ms = tonumber(own_ms)
  if own_ms > now_ms then
    deadline_ms, looked, live_ms = math.max(deadline_ms, own_ms), true, own_ms
    read_phase(deadline_ms)
    extend_reader(id, deadline_ms, own_since)
    return granted(1)
  end
end

local free_ms
if writer then
  free_ms = writer_ms
elseif foreign_write_ms > now_ms then
  free_ms = foreign_write_ms
elseif next_writer() then
  free_ms = foreign_read_ms > now_ms and foreign_read_ms or live_reader() or now_ms
elseif mode == 'w' then
  free_ms = foreign_read_ms > now_ms and foreign_read_ms or live_reader()
  if not free_ms and (crowded or in_turn > 0) then free_ms = now_ms end
elseif (not live_reader() and crowded) or (in_turn + waiting > 0 and redis.call('HGET', key, 'Q' .. id)) then
  free_ms = live_ms or now_ms
end

if not free_ms and mode == 'w' then
  enter_writer(id, deadline_ms, turns)
  return granted(block)
elseif not free_ms then
  if own then -- a dead record of its own is used again, for a hold that begins now
    read_phase(deadline_ms)
    extend_reader(id, deadline_ms, now_ms)
  else
    enter_reader(id, deadline_ms)
  end
  return granted(1)
end

local answer, about, place, next, prev = 'contended', nil, nil, nil, nil
local queues = patience_ms > 0 and writer ~= id and not (own_ms > now_ms and not ended)
if queues then
  local reads
  about, place, next, prev, reads, mark =
    unpack(redis.call('HMGET', key, 'U' .. id, 'Q' .. id, 'N' .. id, 'P' .. id, 'R' .. id, 'k'))
  -- An id that reads does not wait to write. Whoever wants to read has looked before.
  queues = mode == 'r' or ended or tonumber(string.match(reads or '0', '^%d+')) <= now_ms
end
-- Whom only a waiting writer keeps out calls nobody: that one does.
local marked, called_ms = string.match(mark or '', '^(%d+) ?(%d*)$')
local is_kept = tonumber(marked) == last and (mode == 'w' or writer)
if queues and tries and not is_kept then
  queues = tonumber(string.match(about or '0', '^%d+')) > now_ms
end
if queues then
  answer, touched = 'queued', true
  local until_ms, claim_ms = now_ms + patience_ms, math.min(lease_ms, patience_ms)
  local heard, since = string.match(about or '', '^(%d+) %d+ (%d+)')
  if heard and tonumber(heard) > now_ms then
    until_ms = math.max(until_ms, heard)
  else
    if heard then dequeue(id, place, next, prev) end -- it was given up, and begins anew
    since = now_ms
    if mode == 'w' then
      if tail == '-' then head, head_known = id, false else set('N' .. tail, id) end
      set('N' .. id, '-')
      set('P' .. id, tail)
      tail, writers = id, writers + 1
    else
      -- A dead record of its own must not be there when it is let in.
      if own then remove_reader(id, redis.call('HGET', key, 's' .. id)) end
      waiting = waiting + 1
      local place = (turn == 'x' and 'y' or 'x') .. waiting
      set(place, id)
      set('Q' .. id, place)
    end
  end
  set('U' .. id, string.format('%.0f %.0f %s %s', until_ms, claim_ms, since, turns))
  heard_ms = math.max(heard_ms, until_ms)
end
finish(free_ms)
local calls = ''
if is_kept then
  local passed_ms = now_ms - (tonumber(called_ms) or 0)
  if patience_ms == 0 then
    answer = 'kept'
  elseif queues then
    calls = ' 1'
    if tries then -- a try is always heard, and names itself
      redis.pcall('SPUBLISH', channel_of(':call'), marked .. ' ' .. id)
    elseif passed_ms < 0 or passed_ms >= CALL_MS then
      -- Who may not publish has not called: others do.
      if type(redis.pcall('SPUBLISH', channel_of(':call'), marked)) == 'number' then
        redis.call('HSET', key, 'k', string.format('%s %.0f', marked, now_ms))
      end
    end
  end
end
return string.format('%s %s %s %s %.0f%s', answer, id, seconds, micros, math.max(1, free_ms - now_ms), calls)
