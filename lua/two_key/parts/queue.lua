-- Queue of the waiters for the lock. It grants the lock to no waiter. It notifies the next waiter, which then asks again.
-- Reads: call, read_key, server_us, now_ms.
-- Sets: the functions first, opened, notify_readers, wake and publish, too_many_dead, PLACES, ALIVE_OFFSET, RESERVED_MS;
--   unpublished (a local of the script), the last word of the answer, if the server has refused a notification.
local FEW, ALIVE_OFFSET, RESERVED_MS = 4, 17592186044416, 250
local touches_left = 100 -- number of dead waiters and of readers to notify that the script may still handle
-- Number of members that are no place but whose scores may lie between those of places: #token, #born, #forced, #barred,
-- #open and #chain.
local OTHERS = 6
-- Range of the scores of places, for each mode. The score of a place is the lower end plus the time of arrival in us.
local PLACES = {w = {-9007199254740992, '(-4503599627370496'}, r = {-4503599627370496, '(-35184372088832'}}
local to_notify, too_many_dead, heads, opened_us = {}, false, {}, nil

-- Returns the ids and places of the first waiters of one mode, `limit` at most.
local function waiting(which, from, to, limit)
  local found, ids, places = call('ZRANGEBYSCORE', read_key, from, to, 'WITHSCORES', 'LIMIT', 0, limit + OTHERS), {}, {}
  for n = 1, #found, 2 do
    local letter, waiter_id = string.match(found[n], '^#([rw]) (.+)$')
    if letter == which and #ids < limit then ids[#ids + 1], places[#places + 1] = waiter_id, found[n + 1] end
  end
  return ids, places
end

-- Returns the first live waiter of one mode: its id, its place, and its time of arrival. Removes dead waiters before it.
-- If there are too many dead ones, the next waiter may be alive. The id is then empty, and its place is before all others.
local function first(which)
  if heads[which] then return unpack(heads[which]) end
  local from, to = unpack(PLACES[which])
  for pass = 1, 2 do
    local limit = pass == 1 and FEW or math.max(1, touches_left)
    local ids, places = waiting(which, from, to, limit)
    local fields, alive, dead = {}, {}, {}
    for n, waiter_id in ipairs(ids) do fields[n] = '#u ' .. waiter_id end
    if #ids > 0 then alive = call('ZMSCORE', read_key, unpack(fields)) end
    for n, waiter_id in ipairs(ids) do
      if -(alive[n] or 0) - ALIVE_OFFSET > now_ms then
        heads[which] = {waiter_id, places[n], places[n] - from}
        break
      end
      dead[#dead + 1], dead[#dead + 2] = '#' .. which .. ' ' .. waiter_id, fields[n]
      touches_left = touches_left - 1
    end
    if #dead > 0 then call('ZREM', read_key, unpack(dead)) end
    if heads[which] or #ids < limit then
      heads[which] = heads[which] or {}
      return unpack(heads[which])
    end
  end
  too_many_dead = true
  heads[which] = {'', from, 1}
  return unpack(heads[which])
end

-- Returns the time at which the phase of the waiting readers began, or 0 without such a phase. Readers that came until
-- then enter before the next writer.
local function opened()
  opened_us = opened_us or -(call('ZMSCORE', read_key, '#open')[1] or 0)
  return opened_us
end

-- Adds readers of this phase to the waiters to notify, from a place on. If there are more, `#chain` is the place of the
-- last one, from which a later script goes on.
local function notify_readers(from, limit)
  local to = first('w') and string.format('%.0f', PLACES.r[1] + opened()) or PLACES.r[2]
  local ids, places = waiting('r', from, to, limit)
  for _, waiter_id in ipairs(ids) do to_notify[#to_notify + 1] = waiter_id end
  if #ids == limit then
    call('ZADD', read_key, places[#ids], '#chain')
  else
    call('ZREM', read_key, '#chain')
  end
end

-- Chooses the next waiters to notify, and keeps a free lock for them for a short time. After a writer, and if no writer
-- waits, the phase of all readers that wait now begins. No writer that comes later passes these readers.
local function wake(after_writer, readers_inside)
  local writer, reader, place, came_us = first('w'), first('r')
  if not (writer or reader) then -- no client waits
    call('ZREM', read_key, '#waits', '#next', '#open', '#chain')
    return
  end
  if reader and (after_writer or not (writer or readers_inside)) then
    opened_us = server_us
    call('ZADD', read_key, -server_us, '#open')
  end
  if reader and (not writer or came_us <= opened()) then
    if reader ~= '' then notify_readers(place, math.max(1, touches_left)) end
  elseif not readers_inside and writer ~= '' then
    to_notify[1] = writer
  end
  if not readers_inside and #to_notify > 0 then
    local ends_ms = now_ms + RESERVED_MS
    call('ZADD', read_key, -ends_ms, '#next')
    -- The first notified waiter counts as dead if it does not ask again until then. GT compares negated times. So it can
    -- only shorten the time for which the waiter counts as live.
    call('ZADD', read_key, 'XX', 'GT', -(ALIVE_OFFSET + ends_ms), '#u ' .. to_notify[1])
  end
end

-- Publishes the notifications. This is the last step of a script. It does not fail the script, since each waiter asks
-- again anyway.
local function publish()
  for _, waiter_id in ipairs(to_notify) do
    local channel = string.sub(read_key, 1, -5) .. 'wake:' .. string.sub(waiter_id, 1, 32)
    if type(redis.pcall('SPUBLISH', channel, waiter_id)) == 'table' then unpublished = ' unpublished' end
  end
end
