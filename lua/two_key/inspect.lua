#!lua flags=no-writes
-- Shows the holders and the waiters of the lock. If there are many, it shows the first ones and the number of further
-- records.
-- KEYS: the readers (zset), the writer (string)
-- ARGV: none
-- Returns {'view - <time> last_token 0 0 more_holders more_waiters', row, …}; a row is 'hold id mode since_ms remaining_ms'
--   | 'wait id mode since_ms'. Rows show live holds and live waiters. Writers come first, waiters in their order.
local call, read_key, write_key = redis.call, KEYS[1], KEYS[2]
local MAX_RECORDS, ALIVE_OFFSET = 96, 17592186044416 -- the first is the number of records that the script reads, live or dead
-- Range of the scores of places, for each mode. The score of a place is the lower end plus the time of arrival in us.
local PLACES = {w = {-9007199254740992, '(-4503599627370496'}, r = {-4503599627370496, '(-35184372088832'}}

local time = call('TIME')
local now_ms = math.floor((time[1] * 1000000 + time[2]) / 1000)
local writer = call('GET', write_key)
local specials = call('ZMSCORE', read_key, '#token', '#forced', '#born', '#open', '#chain')
local last, ended = 0 - (specials[1] or 0), specials[1] and specials[1] == specials[2]

local readers = call('ZCOUNT', read_key, 0, '+inf')
local waiting = call('ZCOUNT', read_key, PLACES.w[1], PLACES.r[2])
for n = 1, 5 do -- these members are no places, though their scores may lie between those of places
  local score = tonumber(specials[n] or 0)
  if score >= PLACES.w[1] and score < -35184372088832 then waiting = waiting - 1 end
end
local holders = (writer and 1 or 0) + readers
local waiters_seen = math.min(waiting, math.max(MAX_RECORDS - holders, math.floor(MAX_RECORDS / 2)))
local holders_seen = math.min(holders, MAX_RECORDS - waiters_seen)

local rows, left = {}, holders_seen
local writer_ms = writer and call('PEXPIRETIME', write_key)
if writer and left > 0 then
  left = left - 1
  if writer_ms < 0 or writer_ms > now_ms then -- else dead, but the server has not removed it yet
    local id, since_ms = string.match(writer, '^(%S+) (%d+) %d+$')
    -- A value in another form was not written by these scripts. It blocks like a writer and is shown with the id '?'.
    rows[1] = string.format('hold %s w %s %.0f', id or '?', since_ms or 0, math.max(0, writer_ms - now_ms))
  end
end
if left > 0 and readers > 0 and not ended then -- live readers have the highest scores
  local found, names = call('ZREVRANGE', read_key, 0, left - 1, 'WITHSCORES'), {}
  for n = 1, #found, 2 do
    if tonumber(found[n + 1]) <= now_ms then break end
    names[#names + 1] = '@' .. found[n]
  end
  local since = #names > 0 and call('ZMSCORE', read_key, unpack(names))
  for n = 1, #names do
    rows[#rows + 1] = string.format('hold %s r %.0f %.0f', found[2 * n - 1], 0 - (since[n] or 0), found[2 * n] - now_ms)
  end
end
left = waiters_seen
for _, mode in ipairs({'w', 'r'}) do
  local from, to = unpack(PLACES[mode])
  local found, ids, places, alive = {}, {}, {}, {}
  if left > 0 then found = call('ZRANGEBYSCORE', read_key, from, to, 'WITHSCORES', 'LIMIT', 0, left + 5) end
  for n = 1, #found, 2 do
    local id = string.match(found[n], '^#' .. mode .. ' (.+)$')
    if id and left > 0 then ids[#ids + 1], places[#places + 1], alive[#alive + 1], left = id, found[n + 1], '#u ' .. id, left - 1 end
  end
  if #ids > 0 then alive = call('ZMSCORE', read_key, unpack(alive)) end
  for n, id in ipairs(ids) do
    if -(alive[n] or 0) - ALIVE_OFFSET > now_ms then
      rows[#rows + 1] = string.format('wait %s %s %.0f', id, mode, math.floor((places[n] - from) / 1000))
    end
  end
end
return {string.format('view - %s %s %.0f 0 0 %d %d', time[1], time[2], last, holders - holders_seen, waiting - waiters_seen), unpack(rows)}
