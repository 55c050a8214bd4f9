#!lua flags=allow-oom
-- Ends the hold of one acquisition, or its waiting: release and cancel alike. Whoever is next is let in.
-- KEYS: the lock
-- ARGV: id, published limits ('<read_limit_ms> <write_limit_ms>')
-- Returns 'held id <time>' if it was live until now | 'queued id <time>' if it waited | 'none id <time> forced_token last_token
--   first_token' | 'version id <time>'
local call, key, id = redis.call, KEYS[1], ARGV[1]
-- A key that is not used any more may live for so much longer than the retention, if that saves a command.
local RETENTION_MS, MORE_MS, MOST_TURNS, sub = 60000, 120000, 64, string.sub

local time = call('TIME')
local seconds, micros = time[1], time[2]
local now_ms = seconds * 1000 + (micros - micros % 1000) / 1000
local fields = call('HMGET', key, 'h', 'u', 'write', 'read')
local holder, queue, write, read = fields[1], fields[2], fields[3], fields[4]
local server_us

-- Short ways, which come to what the long way below does. Headers are cut where they usually end; what is cut wrongly is no stamp and
-- no id.
local start = sub(holder or '', 1, 17)
local held, goes -- it holds the lock alone, and what is removed with it, but for the header
if write then
  held = start == '2 w ' .. write and sub(holder, 36) == id and write + 0 > now_ms and write
  goes = 'write'
elseif read and start .. '.0' == '2 s ' .. read then
  held = sub(holder, 33) == id and sub(start, 5) + 0 > now_ms and sub(start, 5)
  goes = 'read'
end

if held and not queue then -- nobody waits
  call('HDEL', key, 'h', goes)
  if held - now_ms > MORE_MS then call('PEXPIREAT', key, string.format('%d', now_ms + RETENTION_MS)) end
  return 'held ' .. id .. ' ' .. seconds .. ' ' .. micros
end

if held and not (write and read) then -- or it goes to the first who waits, a writer: readers come before it behind a writer only
  local heard, turn, readers, writers, next, tail = string.match(queue, '^2 (%d+) (%a) 0 (%d+) (%d+) (%S+) (%S+)$')
  if next and next ~= '-' and not (write and readers ~= '0') then
    server_us = seconds * 1000000 + micros
    local last, about, second = unpack(call('HMGET', key, 't', 'U' .. next, 'N' .. next))
    local until_ms, claim_ms, turns = string.match(about, '^(%d+) (%d+) %d+ (%d+)$')
    local others = second ~= '-'
    if tonumber(until_ms) > now_ms and not (others and tonumber(string.match(call('HGET', key, 'U' .. second), '^%d+')) <= now_ms) then
      local deadline_ms, passed = now_ms + claim_ms, math.max(1, server_us - last)
      local token, block = string.format('%d', last + passed), string.format('%02d', math.max(1, math.min(turns, MOST_TURNS, passed)))
      local ends = string.format('%d', deadline_ms)
      local waited_for = (others or readers ~= '0' and tonumber(heard) > now_ms) and ' 1' or ' 0'
      local sets = {'t', token, 'h', string.format('2 w %s %d %s %s', ends, now_ms, block, next), 'write', ends}
      local gone = {'U' .. next, 'N' .. next, 'P' .. next}
      if read then gone[4] = 'read' end
      if others then sets[7], sets[8] = 'P' .. second, '-' else tail = '-' end
      if others or readers ~= '0' then
        local rest = (writers - 1) .. ' ' .. second .. ' ' .. tail
        sets[#sets + 1], sets[#sets + 2] = 'u', '2 ' .. heard .. ' ' .. turn .. ' 0 ' .. readers .. ' ' .. rest
      else
        gone[#gone + 1], heard = 'u', 0
      end
      call('HSET', key, unpack(sets))
      call('HDEL', key, unpack(gone))
      call('PEXPIREAT', key, string.format('%d', math.max(deadline_ms, heard) + RETENTION_MS))
      local tagged = string.find(key, '^[^{]*{[^}]+}')
      redis.pcall('SPUBLISH', (tagged and key or '{' .. key .. '}') .. ':wake:' .. sub(next, 1, 32),
        next .. ' ' .. token .. ' ' .. (block + 0) .. ' ' .. ends .. ' ' .. string.format('%d', server_us) .. waited_for)
      return 'held ' .. id .. ' ' .. seconds .. ' ' .. micros
    end
  end
end

local slots, stamp = string.match(not held and read and not write and holder or '', '^2 r (%d+) (%d+%.0) 0 0$')
if stamp == read and not queue and tonumber(stamp) > now_ms then -- a reader of several, and nobody waits
  local own, slot, other = unpack(call('HMGET', key, 'R' .. id, 's' .. id, 'r' .. slots))
  if own and tonumber(string.match(own, '^%d+')) > now_ms then
    if slots == '1' then -- the last reader
      call('HDEL', key, 'h', 'r1', 's' .. id, 'R' .. id, 'read')
      if stamp - now_ms > MORE_MS then call('PEXPIREAT', key, string.format('%d', now_ms + RETENTION_MS)) end
    else -- the reader at the end moves into the gap
      local header = '2 r ' .. (slots - 1) .. ' ' .. stamp .. ' 0 0'
      if slot == slots then
        call('HSET', key, 'h', header)
      else
        call('HSET', key, 'h', header, 'r' .. slot, other, 's' .. other, slot)
      end
      call('HDEL', key, 'r' .. slots, 's' .. id, 'R' .. id)
      call('PEXPIREAT', key, string.format('%d', stamp + RETENTION_MS))
    end
    return 'held ' .. id .. ' ' .. seconds .. ' ' .. micros
  end
end

-- A reader leaves others, and a writer is next: nobody comes in yet. It is the turn of no waiting readers, if there are any.
local next = queue and slots and slots ~= '1' and stamp == read and tonumber(stamp) > now_ms and string.match(queue, '^2 %d+ %a 0 %d+ %d+ (%S+) ')
if next then
  local end_slot = string.format('%d', slots - 1) -- of those who stay
  local own, slot, other, before, waits = unpack(call('HMGET', key, 'R' .. id, 's' .. id, 'r' .. slots, 'r' .. end_slot, 'U' .. next))
  if own and tonumber(string.match(own, '^%d+')) > now_ms and waits and tonumber(string.match(waits, '^%d+')) > now_ms then
    -- Whoever is at the end then is where the long way would look for a live one, who keeps the writer out.
    local witness = slot == end_slot and other or before
    if tonumber(string.match(call('HGET', key, 'R' .. witness), '^%d+')) > now_ms then
      local header = '2 r ' .. end_slot .. ' ' .. stamp .. ' 0 0'
      if slot == slots then
        call('HSET', key, 'h', header)
      else
        call('HSET', key, 'h', header, 'r' .. slot, other, 's' .. other, slot)
      end
      call('HDEL', key, 'r' .. slots, 's' .. id, 'R' .. id)
      call('PEXPIREAT', key, string.format('%d', math.max(stamp, string.match(queue, '^2 (%d+)')) + RETENTION_MS))
      return 'held ' .. id .. ' ' .. seconds .. ' ' .. micros
    end
  end
end

local limits = ARGV[2]
local last, own, slot, forced, born, about, place, next, prev =
  unpack(call('HMGET', key, 't', 'R' .. id, 's' .. id, 'F', 'b', 'U' .. id, 'Q' .. id, 'N' .. id, 'P' .. id))
server_us = seconds * 1000000 + micros
--@queue

local left, was_live = 'none', writer == id -- live and yet `none`: somebody who does not know us was beside it
if writer == id then
  if write == writer_ends then
    left, write = 'held', nil
    delete('write')
  else -- another stamp, or none, is somebody else's: not ours to the end, and not ours to delete
    disown()
  end
  writer, touched = nil, true
  begin_turn()
elseif own then
  local own_ms, own_since = string.match(own, '^(%d+) (%d+)$')
  was_live = tonumber(own_ms) > now_ms and not ended
  -- A `write` beside our readers is an intruder's. Of one that was beside them before, the mark of that time tells.
  if was_live and write then disown() end
  if was_live and not write and tonumber(own_since) >= overrun_ms then left = 'held' end
  remove_reader(id, slot)
elseif about then
  if tonumber(string.match(about, '^%d+')) > now_ms then left = 'queued' end
  dequeue(id, place, next, prev)
end
admit()
finish(math.max(foreign_write_ms, foreign_read_ms))
if left == 'none' then
  if was_live then last, birth = 0, 0 end
  return string.format('none %s %s %s %s %.0f %.0f', id, seconds, micros, forced or 0, last, birth or born or last)
end
return left .. ' ' .. id .. ' ' .. seconds .. ' ' .. micros
