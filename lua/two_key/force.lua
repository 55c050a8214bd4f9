#!lua flags=allow-oom
-- Ends every hold that `inspect` has shown, and no newer hold. The last token stays, and marks all holds up to it as ended
-- by force. All holds end at once, but one call removes a limited number of records. Until all are removed no client
-- enters, and the same call again removes more. A force ends no waiting: the next waiter gets a notification, and asks
-- again.
-- KEYS: the readers (zset), the writer (string)
-- ARGV: last_token, 0, 0, as `inspect` answered them; if several servers have the lock, also the highest token that any
--   of them has shown, and the ids that they have shown, with blanks between them. A hold with such an id ends whatever
--   its token is now, and 'raise' in `acquire` does not bring it back.
-- Returns {'forced - <time> more' (0 or 1), id, …}: the ids of holds that were live until now; 1: repeat the call
local seen, barred = tonumber(ARGV[1]), tonumber(ARGV[4] or 0)
local RETENTION_MS, MAX_RECORDS, unpublished = 60000, 96, ''

--@clock
local writer = call('GET', write_key)
local scores = call('ZMSCORE', read_key, '#token', '#waits', '#born', '#forced')
local last, waits, born = scores[1], scores[2], scores[3]
local reply = {'forced - ' .. time[1] .. ' ' .. time[2] .. ' 0'}
local writer_ms = writer and call('PEXPIRETIME', write_key)
local writer_lives = writer and (writer_ms < 0 or writer_ms > now_ms)

-- Returns true if a hold that several servers have shown is live here, or if an earlier force has left records to remove.
local function is_shown()
  if last and last == scores[4] then return true end
  for id in string.gmatch(ARGV[5] or '', '%S+') do
    if writer_lives and string.sub(writer, 1, #id + 1) == id .. ' ' then return true end
    if tonumber(call('ZMSCORE', read_key, id)[1] or 0) > now_ms then return true end
  end
  return false
end

if barred > 0 then
  local longest = call('ZREVRANGE', read_key, 0, 0, 'WITHSCORES')
  local until_ms = math.max(now_ms, writer_ms or 0, (longest[2] or 0) + 0, -(waits or 0)) + RETENTION_MS
  call('ZADD', read_key, 'LT', -barred, '#barred')
  call('PEXPIREAT', read_key, until_ms, 'NX')
  call('PEXPIREAT', read_key, until_ms, 'GT')
end
-- The holds of `inspect` are over and newer ones are here, so this copy is late.
if -(last or 0) > seen and not (barred > 0 and is_shown()) then return reply end
if writer_lives then -- else dead, but the server has not removed it yet
  reply[2] = string.match(writer, '^(%S+) %d+ %d+$')
end

call('DEL', write_key)
local readers, gone = call('ZREVRANGE', read_key, 0, MAX_RECORDS - 1, 'WITHSCORES'), {}
for n = 1, #readers, 2 do
  if tonumber(readers[n + 1]) < 0 then break end -- scores below 0 are no deadlines
  gone[n], gone[n + 1] = readers[n], '@' .. readers[n]
  if tonumber(readers[n + 1]) > now_ms then reply[#reply + 1] = readers[n] end
end
if #gone > 0 then call('ZREM', read_key, unpack(gone)) end
local left = call('ZREVRANGE', read_key, 0, 0, 'WITHSCORES')[2]
local more = left and tonumber(left) >= 0
if last then call('ZADD', read_key, last, '#token', last, '#forced', born or last, '#born') end
call('PEXPIREAT', read_key, math.max(now_ms, -(waits or 0)) + RETENTION_MS)
if more then
  reply[1] = 'forced - ' .. time[1] .. ' ' .. time[2] .. ' 1'
elseif waits then
  --@queue
  wake(writer_lives)
  publish()
  reply[1] = reply[1] .. unpublished
end
return reply
