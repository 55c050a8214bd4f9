#!lua flags=no-writes
-- Shows the holders and the waiters of the lock. If they are many, it shows the first ones, and how many more are recorded.
-- KEYS: the lock
-- ARGV: none
-- Returns {'view - <time> last_token foreign_write_stamp_ms foreign_read_stamp_ms more_holders more_waiters recallable'
--   (0 or 1), row, …} | 'version - <time>'; a row is 'hold id mode since_ms remaining_ms' or 'wait id mode since_ms': live
--   holds and live waiters, writers first and in their order. A row 'hold … note' has the text of its note behind it. A stamp
--   of 0 is none; the caller knows if it still counts
local call, key = redis.call, KEYS[1]
local format, match, sub = string.format, string.match, string.sub
local MAX_RECORDS = 96 -- the holders and waiters that one script examines, live or dead

local time = call('TIME')
local now_ms = math.floor((time[1] * 1000000 + time[2]) / 1000)
local last, holder, queue, write, read, first_writer, first_readers, flag =
  unpack(call('HMGET', key, 't', 'h', 'u', 'write', 'read', 'W', 'a', 'k'))
if first_writer or first_readers or sub(holder or '3 ', 1, 2) ~= '3 ' or sub(queue or '3 ', 1, 2) ~= '3 ' then
  return 'version - ' .. time[1] .. ' ' .. time[2]
end

local ends, since, writer = match(holder or '', '^3 w (%d+) (%d+) %d+ (.*)$')
local kind, slots, read_stamp, covered = match(holder or '', '^3 ([rx]) (%d+) (%d+%.0) (%d+)')
local sole_ends, sole_since, sole = match(holder or '', '^3 s (%d+) (%d+) (.*)$')
if sole then slots, read_stamp, covered = 1, sole_ends .. '.0', 0 end
local phase, in_phase, later_readers, waiting_writers, head =
  match(queue or '3 0 x 0 0 0 - -', '^3 %d+ (%a) (%d+) (%d+) (%d+) (%S+)')
slots = tonumber(slots or 0)

local holders, waiters = (writer and 1 or 0) + slots, in_phase + later_readers + waiting_writers
local waiters_seen = math.min(waiters, math.max(MAX_RECORDS - holders, math.floor(MAX_RECORDS / 2)))
local holders_seen = math.min(holders, MAX_RECORDS - waiters_seen)

local rows, noted = {}, {}
-- Adds the row of a holder. A since_ms that begins with 0 is that of a hold with a note.
local function add_holder(id, mode, since_ms, remaining_ms)
  rows[#rows + 1] = format('hold %s %s %d %d', id, mode, since_ms, remaining_ms)
  if sub(since_ms, 1, 1) == '0' then noted[#noted + 1], noted[#noted + 2] = #rows, id end
end
-- Passes the live clients to `row` whose ids are in the fields `places`. `prefix` and an id name the client's record.
local function show(places, prefix, row)
  if #places == 0 then return end
  local ids, names = call('HMGET', key, unpack(places)), {}
  for n, id in ipairs(ids) do names[n] = prefix .. id end
  for n, record in ipairs(call('HMGET', key, unpack(names))) do
    local ends_ms, second, third = match(record, '^(%d+) (%d+) ?(%d*)')
    if tonumber(ends_ms) > now_ms then row(ids[n], ends_ms, second, third) end
  end
end

if writer then
  if write == ends and holders_seen > 0 and tonumber(ends) > now_ms then
    add_holder(writer, 'w', since, ends - now_ms)
  end
elseif sole then
  if holders_seen > 0 and tonumber(sole_ends) > now_ms then
    add_holder(sole, 'r', sole_since, sole_ends - now_ms)
  end
elseif kind == 'r' then
  local places = {}
  for slot = 1, holders_seen do places[slot] = 'r' .. slot end
  show(places, 'R', function(id, ends_ms, since_ms) add_holder(id, 'r', since_ms, ends_ms - now_ms) end)
end
local more = waiters_seen
while head ~= '-' and more > 0 do
  local record, next_writer = unpack(call('HMGET', key, 'U' .. head, 'N' .. head))
  local until_ms, since_ms = match(record, '^(%d+) %d+ (%d+)')
  if tonumber(until_ms) > now_ms then rows[#rows + 1] = format('wait %s w %s', head, since_ms) end
  head, more = next_writer, more - 1
end
local places = {}
for slot = 1, math.min(in_phase + 0, more) do places[slot] = phase .. slot end
for slot = 1, math.min(later_readers + 0, more - #places) do places[#places + 1] = (phase == 'x' and 'y' or 'x') .. slot end
show(places, 'U', function(id, _, _, since_ms) rows[#rows + 1] = format('wait %s r %s', id, since_ms) end)

-- From the end on, so that the places of earlier rows stay.
for n = #noted - 1, 1, -2 do
  local row, text = noted[n], match(call('HGET', key, 'n' .. noted[n + 1]) or '', '^%d+ (.+)$')
  if text then
    rows[row] = rows[row] .. ' note'
    table.insert(rows, row + 1, text)
  end
end

--@stamp_of
if write == ends then write = nil end
if read == read_stamp then read = covered end
local recallable = flag and match(flag, '^%d+') == last and 1 or 0
return {format('view - %s %s %s %d %d %d %d %d', time[1], time[2], last or 0, stamp_of(write or nil),
  stamp_of(read or covered), holders - holders_seen, waiters - waiters_seen, recallable), unpack(rows)}
