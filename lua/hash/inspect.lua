#!lua flags=no-writes
-- Shows who holds the lock and who waits for it: of many the first, and how many more are recorded.
-- KEYS: the lock
-- ARGV: none
-- Returns {'view - <time> last_token foreign_write_stamp_ms foreign_read_stamp_ms more_holders more_waiters
--   marked' (0 or 1), row, …}; a row is
--   'hold id mode since_ms remaining_ms' | 'wait id mode since_ms': live holds, and live waiters, writers first, in their order.
--   A stamp of 0 is none, and whether it still counts is for the caller to judge | 'version - <time>'
local key = KEYS[1]
local MOST_RECORDS = 96 -- the holders and waiters that are looked at, live or dead

local time = redis.call('TIME')
local now_ms = math.floor((time[1] * 1000000 + time[2]) / 1000)
local last, holder, queue, write, read, old_writer, old_readers, mark =
  unpack(redis.call('HMGET', key, 't', 'h', 'u', 'write', 'read', 'W', 'a', 'k'))
if old_writer or old_readers or string.sub(holder or '2 ', 1, 2) ~= '2 ' or string.sub(queue or '2 ', 1, 2) ~= '2 ' then
  return 'version - ' .. time[1] .. ' ' .. time[2]
end

local ends, since, writer = string.match(holder or '', '^2 w (%d+) (%d+) %d+ (.*)$')
local kind, slots, stamp, covered = string.match(holder or '', '^2 ([rx]) (%d+) (%d+%.0) (%d+)')
local sole_ends, sole_since, sole = string.match(holder or '', '^2 s (%d+) (%d+) (.*)$')
if sole then slots, stamp, covered = 1, sole_ends .. '.0', 0 end
local turn, in_turn, waiting, writers, head = string.match(queue or '2 0 x 0 0 0 - -', '^2 %d+ (%a) (%d+) (%d+) (%d+) (%S+)')
slots = tonumber(slots or 0)

local holders, waiters = (writer and 1 or 0) + slots, in_turn + waiting + writers
local waiters_seen = math.min(waiters, math.max(MOST_RECORDS - holders, math.floor(MOST_RECORDS / 2)))
local holders_seen = math.min(holders, MOST_RECORDS - waiters_seen)

local rows = {}
-- The records that lie in the fields `places`, ids first; `prefix` and `id` name the record.
local function show(places, prefix, row)
  if #places == 0 then return end
  local ids, names = redis.call('HMGET', key, unpack(places)), {}
  for n, id in ipairs(ids) do names[n] = prefix .. id end
  for n, about in ipairs(redis.call('HMGET', key, unpack(names))) do
    local ends_ms, second, third = string.match(about, '^(%d+) (%d+) ?(%d*)')
    if tonumber(ends_ms) > now_ms then rows[#rows + 1] = row(ids[n], ends_ms, second, third) end
  end
end

if writer then
  if write == ends and holders_seen > 0 and tonumber(ends) > now_ms then
    rows[1] = string.format('hold %s w %s %.0f', writer, since, ends - now_ms)
  end
elseif sole then
  if holders_seen > 0 and tonumber(sole_ends) > now_ms then
    rows[1] = string.format('hold %s r %s %.0f', sole, sole_since, sole_ends - now_ms)
  end
elseif kind == 'r' then
  local places = {}
  for slot = 1, holders_seen do places[slot] = 'r' .. slot end
  show(places, 'R', function(id, ends_ms, since_ms) return string.format('hold %s r %s %.0f', id, since_ms, ends_ms - now_ms) end)
end
local left = waiters_seen
while head ~= '-' and left > 0 do
  local about, next = unpack(redis.call('HMGET', key, 'U' .. head, 'N' .. head))
  local until_ms, since_ms = string.match(about, '^(%d+) %d+ (%d+)')
  if tonumber(until_ms) > now_ms then rows[#rows + 1] = string.format('wait %s w %s', head, since_ms) end
  head, left = next, left - 1
end
local places = {}
for slot = 1, math.min(in_turn, left) do places[slot] = turn .. slot end
for slot = 1, math.min(waiting, left - #places) do places[#places + 1] = (turn == 'x' and 'y' or 'x') .. slot end
show(places, 'U', function(id, _, _, since_ms) return string.format('wait %s r %s', id, since_ms) end)

-- What no clock says in milliseconds is no time, and nobody's.
local function stamp_of(text)
  local number = tonumber(text or nil)
  return number and number > 0 and number <= 9007199254740000 and math.floor(number) or 0
end
if write == ends then write = nil end
if read == stamp then read = covered end
local marked = mark and string.match(mark, '^%d+') == last and 1 or 0
return {string.format('view - %s %s %s %.0f %.0f %d %d %d', time[1], time[2], last or 0, stamp_of(write), stamp_of(read or covered),
  holders - holders_seen, waiters - waiters_seen, marked), unpack(rows)}
