#!lua flags=allow-oom
-- Extends the live hold of one acquisition. Never shortens it, never brings back what is lost. Lets nobody in: whoever is next asks.
-- KEYS: the lock
-- ARGV: id, lease_ms; for who may keep the hold: 'k', and how many more tokens a writer wants at most (may be missing)
-- Returns 'renewed id <time> remaining_ms' | with 'k' 'renewed id <time> remaining_ms waited_for first_token turns' (0 or 1; its new tokens,
--   '0 0' for none) | 'lost id <time> forced_token' | 'version id <time>'
local call, key, id, lease_ms, keeps, more = redis.call, KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local RETENTION_MS, MOST_TURNS, sub = 60000, 64, string.sub

local time = call('TIME')
local seconds, micros = time[1], time[2]
local now_ms = seconds * 1000 + (micros - micros % 1000) / 1000
local fields
if keeps then
  fields = call('HMGET', key, 'h', 'u', 'write', 'read', 'R' .. id, 't', 'k')
else
  fields = call('HMGET', key, 'h', 'u', 'write', 'read', 'R' .. id)
end
local holder, queue, write, read, own, last, mark = fields[1], fields[2], fields[3], fields[4], fields[5], fields[6], fields[7]
local deadline_ms = now_ms + lease_ms

-- Short ways, which come to what the long way below does: nobody waits, nothing is foreign, and no tokens are wanted. Headers are cut
-- where they usually end; what is cut wrongly is no stamp and no id.
if holder and not queue and (not more or more == '0') then
  local start, done = sub(holder, 1, 17), false
  if write then
    if start == '2 w ' .. write and sub(holder, 36) == id and write + 0 > now_ms then
      deadline_ms, done = math.max(deadline_ms, write), true
      local ends = string.format('%d', deadline_ms)
      call('HSET', key, 'h', '2 w ' .. ends .. sub(holder, 18), 'write', ends)
      call('PEXPIREAT', key, string.format('%d', deadline_ms + RETENTION_MS))
    end
  elseif read and start .. '.0' == '2 s ' .. read then
    local alone_ms = tonumber(sub(start, 5))
    if sub(holder, 33) == id and alone_ms > now_ms then -- the only reader
      deadline_ms, done = math.max(deadline_ms, alone_ms), true
      local ends = string.format('%d', deadline_ms)
      call('HSET', key, 'h', '2 s ' .. ends .. sub(holder, 18), 'read', ends .. '.0')
      call('PEXPIREAT', key, string.format('%d', deadline_ms + RETENTION_MS))
    end
  elseif read and own then
    local slots, stamp = string.match(holder, '^2 r (%d+) (%d+%.0) 0 0$')
    local own_ms, own_since = string.match(own, '^(%d+) (%d+)$')
    if stamp == read and tonumber(own_ms) > now_ms then -- one of several
      deadline_ms, done = math.max(deadline_ms, own_ms), true
      local stamp_ms = math.max(deadline_ms, stamp)
      local text = string.format('%d.0', stamp_ms)
      call('HSET', key, 'R' .. id, string.format('%d %s', deadline_ms, own_since), 'h', '2 r ' .. slots .. ' ' .. text .. ' 0 0', 'read', text)
      call('PEXPIREAT', key, string.format('%d', stamp_ms + RETENTION_MS))
    end
  end
  if done then
    if keeps and mark ~= last then call('HSET', key, 'k', last) end
    return 'renewed ' .. id .. ' ' .. seconds .. ' ' .. micros .. ' ' .. (deadline_ms - now_ms) .. (keeps and ' 0 0 0' or '')
  end
end

local heard_ms = queue and string.match(queue, '^2 (%d+)') or 0
local writers_wait = keeps and queue and not string.find(queue, '^2 %d+ %a %d+ %d+ 0 ')

-- Somebody who does not know us is inside beside a live hold: nothing is known any more of the tokens up to now. Else a release whose
-- first reply was lost would take the end of the hold for its own doing.
local function disown()
  redis.call('HSET', key, 'b', string.format('%.0f', (redis.call('HGET', key, 't') or 0) + 1))
end

-- Sets the mark, and answers. `turns` is how many tokens this brings, `ahead` by how many the last one moves on.
local kept = keeps and function(deadline_ms, is_waited_for, turns, ahead)
  local marked, rest = string.match(mark or '', '^(%d+)(.*)$')
  local token = string.format('%.0f', last + ahead)
  if not is_waited_for or marked ~= last then
    redis.call('HSET', key, 'k', token)
  elseif ahead > 0 then -- and when it was called for
    redis.call('HSET', key, 'k', token .. rest)
  end
  return string.format('renewed %s %s %s %d %d %.0f %d', id, time[1], time[2], deadline_ms - now_ms, is_waited_for and 1 or 0,
    turns > 0 and last + ahead - turns + 1 or 0, turns)
end

local ends, since, block, who = string.match(holder or '', '^2 w (%d+) (%d+) (%d+) (.*)$')
local sole_ends, sole_since, sole = string.match(holder or '', '^2 s (%d+) (%d+) (.*)$')
local kind, slots, stamp, covered, overrun = string.match(holder or '', '^2 ([rx]) (%d+) (%d+%.0) (%d+) (%d+)$')
if who == id then
  if write == ends and tonumber(ends) > now_ms then
    deadline_ms = math.max(deadline_ms, ends)
    local turns, ahead = 0, 0
    if keeps and tonumber(more or 0) > 0 then -- up to the clock, as those of a grant
      ahead = math.max(1, time[1] * 1000000 + time[2] - last)
      turns = math.min(more, MOST_TURNS, ahead)
      block = string.format('%02d', turns)
      redis.call('HSET', key, 't', string.format('%.0f', last + ahead))
    end
    redis.call('HSET', key, 'h', string.format('2 w %d %s %s %s', deadline_ms, since, block, id), 'write', string.format('%d', deadline_ms))
    redis.call('PEXPIREAT', key, string.format('%d', math.max(deadline_ms, heard_ms) + RETENTION_MS))
    if keeps then return kept(deadline_ms, tonumber(heard_ms) > now_ms, turns, ahead) end
    return string.format('renewed %s %s %s %d', id, time[1], time[2], deadline_ms - now_ms)
  end
  -- Dead from now on, and replaced like any dead writer, after whom the readers have their turn.
  redis.call('HSET', key, 'h', string.format('2 w 0 %s %s %s', since, block, id))
  if write == ends then
    redis.call('HDEL', key, 'write')
  elseif tonumber(ends) > now_ms then -- another value, or none, is somebody else's
    disown()
  end
elseif sole == id then
  local foreign = read and read ~= sole_ends .. '.0' and tonumber(read)
  if foreign and foreign > 0 and foreign <= 9007199254740000 then foreign = math.floor(foreign) else foreign = nil end
  if write or foreign or tonumber(sole_ends) <= now_ms then -- what the header of one reader has no place for: it gets a slot
    redis.call('HSET', key, 'h', '2 r 1 ' .. sole_ends .. '.0 0 0', 'r1', id, 's' .. id, 1, 'R' .. id, sole_ends .. ' ' .. sole_since)
    kind, slots, stamp, covered, overrun, own = 'r', '1', sole_ends .. '.0', '0', '0', sole_ends .. ' ' .. sole_since
  else
    deadline_ms = math.max(deadline_ms, sole_ends)
    local ends = string.format('%d', deadline_ms)
    redis.call('HSET', key, 'h', '2 s ' .. ends .. ' ' .. sole_since .. ' ' .. id, 'read', ends .. '.0')
    redis.call('PEXPIREAT', key, string.format('%d', math.max(deadline_ms, heard_ms) + RETENTION_MS))
    if keeps then return kept(deadline_ms, tonumber(heard_ms) > now_ms and writers_wait, 0, 0) end
    return string.format('renewed %s %s %s %d', id, time[1], time[2], deadline_ms - now_ms)
  end
end
if own and kind then
  local own_ms, own_since = string.match(own, '^(%d+) (%d+)$')
  if kind == 'r' and tonumber(own_ms) > now_ms and not write and tonumber(own_since) >= tonumber(overrun) then
    deadline_ms = math.max(deadline_ms, own_ms)
    local stamp_ms = math.max(deadline_ms, stamp)
    if read and read ~= stamp then -- a foreign reader overwrote our stamp: cover its own, else its release uncovers us
      local foreign = tonumber(read)
      if foreign and foreign > 0 and foreign <= 9007199254740000 then covered = math.max(math.floor(foreign), covered) end
    end
    stamp_ms = math.max(stamp_ms, covered)
    redis.call('HSET', key, 'R' .. id, string.format('%d %s', deadline_ms, own_since),
      'h', string.format('2 r %s %d.0 %d %s', slots, stamp_ms, covered, overrun), 'read', string.format('%d.0', stamp_ms))
    redis.call('PEXPIREAT', key, string.format('%d', math.max(stamp_ms, heard_ms) + RETENTION_MS))
    if keeps then return kept(deadline_ms, tonumber(heard_ms) > now_ms and writers_wait, 0, 0) end
    return string.format('renewed %s %s %s %d', id, time[1], time[2], deadline_ms - now_ms)
  end
  -- Dead, or an intruder's `write` stands or stood beside it: dead from now on, and removed like any dead reader.
  redis.call('HSET', key, 'R' .. id, '0 ' .. own_since)
  if kind == 'r' and tonumber(own_ms) > now_ms and write then disown() end
end

local forced, old_writer, old_readers = unpack(redis.call('HMGET', key, 'F', 'W', 'a'))
if old_writer or old_readers or holder and not (who or kind or sole) or queue and heard_ms == 0 then
  -- Another version has written this: it is not ours to change, nor to judge.
  return 'version ' .. id .. ' ' .. time[1] .. ' ' .. time[2]
end
-- NX: only a key that lost its ttl gets one here.
redis.call('PEXPIREAT', key, math.max(now_ms, ends or sole_ends or 0, stamp or 0, heard_ms) + RETENTION_MS, 'NX')
return string.format('lost %s %s %s %s', id, time[1], time[2], forced or 0)
