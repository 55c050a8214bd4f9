-- Waiters for the lock. No script: it is put into scripts that name it. It lets no waiter in: the next one gets a
-- notification, and asks again.
-- It counts on these locals: read_key, server_us, now_ms.
local FEW, HEARD, RESERVED_MS = 4, 17592186044416, 250
local looks_left = 100 -- at dead waiters, and at those to tell
local OTHERS = 6 -- members that are nobody's place and may lie among the places: #token, #born, #forced, #barred, #open and #chain
-- Between which scores the places of one mode lie. A place is the time of arrival in us above the lower end.
local PLACES = {w = {-9007199254740992, '(-4503599627370496'}, r = {-4503599627370496, '(-35184372088832'}}
local news, crowded, heads, opened_us = {}, false, {}, nil

-- The ids and places of the first who wait in one mode: as many as asked for, unless there are fewer.
local function waiting(which, from, to, most)
  local found, ids, places = redis.call('ZRANGEBYSCORE', read_key, from, to, 'WITHSCORES', 'LIMIT', 0, most + OTHERS), {}, {}
  for n = 1, #found, 2 do
    local letter, who = string.match(found[n], '^#([rw]) (.+)$')
    if letter == which and #ids < most then ids[#ids + 1], places[#places + 1] = who, found[n + 1] end
  end
  return ids, places
end

-- The first live waiter of one mode: id, place, when it came. Dead ones before it leave; if there are too many, the next may be alive:
-- an empty id, before all others.
local function first(which)
  if heads[which] then return unpack(heads[which]) end
  local from, to = unpack(PLACES[which])
  for pass = 1, 2 do
    local most = pass == 1 and FEW or math.max(1, looks_left)
    local ids, places = waiting(which, from, to, most)
    local fields, heard, dead = {}, {}, {}
    for n, who in ipairs(ids) do fields[n] = '#u ' .. who end
    if #ids > 0 then heard = redis.call('ZMSCORE', read_key, unpack(fields)) end
    for n, who in ipairs(ids) do
      if -(heard[n] or 0) - HEARD > now_ms then
        heads[which] = {who, places[n], places[n] - from}
        break
      end
      dead[#dead + 1], dead[#dead + 2] = '#' .. which .. ' ' .. who, fields[n]
      looks_left = looks_left - 1
    end
    if #dead > 0 then redis.call('ZREM', read_key, unpack(dead)) end
    if heads[which] or #ids < most then
      heads[which] = heads[which] or {}
      return unpack(heads[which])
    end
  end
  crowded = true
  heads[which] = {'', from, 1}
  return unpack(heads[which])
end

-- Since when the waiting readers have their turn: before writers, those that had come until then. 0: not.
local function opened()
  opened_us = opened_us or -(redis.call('ZMSCORE', read_key, '#open')[1] or 0)
  return opened_us
end

-- Tells some waiting readers of this turn, from a place on. The last of them goes on with those behind it.
local function tell_readers(from, most)
  local to = first('w') and string.format('%.0f', PLACES.r[1] + opened()) or PLACES.r[2]
  local ids, places = waiting('r', from, to, most)
  for _, who in ipairs(ids) do news[#news + 1] = who end
  if #ids == most then
    redis.call('ZADD', read_key, places[#ids], '#chain')
  else
    redis.call('ZREM', read_key, '#chain')
  end
end

-- Notifies the next waiter, which asks again, and keeps a free lock for them, but not for long. After a writer, and
-- where no writer waits, it is the turn of all readers who wait now: no writer that comes later passes them.
local function wake(after_writer, beside_readers)
  local writer, reader, place, came_us = first('w'), first('r')
  if not (writer or reader) then -- nobody waits
    redis.call('ZREM', read_key, '#waits', '#next', '#open', '#chain')
    return
  end
  if reader and (after_writer or not (writer or beside_readers)) then
    opened_us = server_us
    redis.call('ZADD', read_key, -server_us, '#open')
  end
  if reader and (not writer or came_us <= opened()) then
    if reader ~= '' then tell_readers(place, math.max(1, looks_left)) end
  elseif not beside_readers and writer ~= '' then
    news[1] = writer
  end
  if not beside_readers and #news > 0 then
    local ends_ms = now_ms + RESERVED_MS
    redis.call('ZADD', read_key, -ends_ms, '#next')
    -- If the first one does not come until then it counts as dead. GT: it is not believed for longer than before.
    redis.call('ZADD', read_key, 'XX', 'GT', -(HEARD + ends_ms), '#u ' .. news[1])
  end
end

-- Last, and its failure is nobody's: who waits asks again anyway.
local function publish()
  for _, who in ipairs(news) do
    redis.pcall('SPUBLISH', string.sub(read_key, 1, -5) .. 'wake:' .. string.sub(who, 1, 32), who)
  end
end
