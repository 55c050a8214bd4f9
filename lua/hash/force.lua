#!lua flags=allow-oom
-- Ends every hold that `inspect` showed, foreign stamps too, and nothing newer, and calls who may keep them. The last token stays, and
-- marks all holds up to it as ended by force. All end at once, but one call removes a bounded number of records: until none is left nobody enters, and the same
-- call again goes on. Whoever waits is next.
-- KEYS: the lock
-- ARGV: last_token, foreign_write_stamp_ms, foreign_read_stamp_ms, as `inspect` answered them; published limits
--   ('<read_limit_ms> <write_limit_ms>'), the ids of the holds that it answered, with a blank between them (may be missing)
-- Returns {'forced - <time> more' (0 or 1), id, …}: the holds that were live until now, and whether to call again | 'version - <time>'
local key, id, seen, seen_write, seen_read = KEYS[1], '', tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local limits, seen_ids = ARGV[4], ' ' .. (ARGV[5] or '') .. ' '
local RETENTION_MS, MOST_TURNS = 60000, 64

local time = redis.call('TIME')
local server_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(server_us / 1000)
local last, holder, queue, write, read, mark = unpack(redis.call('HMGET', key, 't', 'h', 'u', 'write', 'read', 'k'))
local own
local reply = {'forced - ' .. time[1] .. ' ' .. time[2] .. ' 0'}
if tonumber(last or 0) > seen then
  -- What was seen is over, and this copy late; but for a writer whose renewal brought it new tokens since.
  local held = string.match(holder or '', '^2 w %d+ %d+ %d+ (.*)$')
  if not (held and string.find(seen_ids, ' ' .. held .. ' ', 1, true)) then return reply end
end
local marked = mark and string.match(mark, '^%d+') == last and last
--@queue

touched = true
if last > 0 then set('F', last) end

if writer then
  if write == writer_ends then
    reply[2] = writer
    delete('write')
    write = nil
  end
  writer = nil
  begin_turn()
end
if sole then
  if sole_ms > now_ms then reply[2] = sole end
  sole, slots, records, ended = nil, 0, records - 1, true
end
local count, places, about = math.min(slots, records), {}, {}
for n = 1, count do places[n] = 'r' .. (slots - n + 1) end
if count > 0 then
  local ids = redis.call('HMGET', key, unpack(places))
  for n, who in ipairs(ids) do
    about[n], places[#places + 1], places[#places + 2] = 'R' .. who, 's' .. who, 'R' .. who
  end
  about = redis.call('HMGET', key, unpack(about))
  for n, who in ipairs(ids) do
    if tonumber(string.match(about[n], '^%d+')) > now_ms then reply[#reply + 1] = who end
  end
  redis.call('HDEL', key, unpack(places))
  slots, records, ended = slots - count, records - count, true
end

-- Stamps have no token: one that differs from what was seen has come since, and stays.
if write and stamp_of(write) == seen_write then
  delete('write')
  write, foreign_write_ms = nil, 0
end
if foreign_read and foreign_read == seen_read then
  delete('read')
  read, foreign_read, foreign_read_ms = nil, nil, covered > 0 and covered + read_limit_ms + 1 or 0
end
if covered == seen_read then
  covered = 0
  foreign_read_ms = foreign_read and foreign_read + read_limit_ms + 1 or 0
end

admit()
finish()
if marked then redis.pcall('SPUBLISH', channel_of(':call'), marked) end
if ended and slots > 0 then reply[1] = 'forced - ' .. time[1] .. ' ' .. time[2] .. ' 1' end
return reply
