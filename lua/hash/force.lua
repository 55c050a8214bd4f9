#!lua flags=allow-oom
-- Ends every hold that `inspect` has shown, foreign stamps too, and no newer hold. Recalls cached holds. The last token
-- stays, and marks all holds up to it as ended by force. All holds end at once, but one call removes a limited number of
-- records. Until all are removed no client enters, and the same call again removes more. The next waiter enters.
-- KEYS: the lock
-- ARGV: last_token, foreign_write_stamp_ms, foreign_read_stamp_ms, as `inspect` answered them; limits of timestamp clients
--   ('<read_limit_ms> <write_limit_ms>'), the ids of the holds that it showed, with blanks between them (may be missing)
-- Returns {'forced - <time> more' (0 or 1), id, …}: the ids of holds that were live until now; 1: repeat the call
--   | 'version - <time>'
local id, seen, seen_write, seen_read = '', tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local limits, seen_ids = ARGV[4], ' ' .. (ARGV[5] or '') .. ' '
local RETENTION_MS, MAX_TOKENS = 60000, 2048

--@clock
local last, holder, queue, write, read, flag = unpack(call('HMGET', key, 't', 'h', 'u', 'write', 'read', 'k'))
local reply = {'forced - ' .. seconds .. ' ' .. micros .. ' 0'}
if tonumber(last or 0) > seen then
  -- The holds of `inspect` are over, so this copy is late; except for a writer whose renewal brought it new tokens since.
  local held = match(holder or '', '^3 w %d+ %d+ %d+ (.*)$')
  if not (held and string.find(seen_ids, ' ' .. held .. ' ', 1, true)) then return reply end
end
local recallable = flag and match(flag, '^%d+') == last and last
local deadline_ms, asked_mode, free_ms
--@state
--@dead

holder_changed = true
if last then to_set[1], to_set[2] = 'F', last end
last = tonumber(last or 0)
if writer then
  if write == writer_stamp then reply[2], to_delete[1], write = writer, 'write', nil end
  if sub(since_ms, 1, 1) == '0' then to_delete[#to_delete + 1] = 'n' .. writer end
  writer, writer_gone = nil, true
end
if sole then
  if sole_ms > now_ms then reply[2] = sole end
  if sub(sole_since, 1, 1) == '0' then to_delete[#to_delete + 1] = 'n' .. sole end
  sole, slots, records_left, kind = nil, 0, records_left - 1, 'x'
end
local count, names, records = math.min(slots, records_left), {}, {}
if count > 0 then
  for n = 1, count do names[n] = 'r' .. (slots - n + 1) end
  local ids = call('HMGET', key, unpack(names))
  for n, reader_id in ipairs(ids) do
    records[n], names[#names + 1], names[#names + 2] = 'R' .. reader_id, 's' .. reader_id, 'R' .. reader_id
  end
  records = call('HMGET', key, unpack(records))
  for n, reader_id in ipairs(ids) do
    if match(records[n], '^%d+') + 0 > now_ms then reply[#reply + 1] = reader_id end
    if sub(records[n], -14, -14) == '0' then names[#names + 1] = 'n' .. reader_id end
  end
  call('HDEL', key, unpack(names))
  slots, records_left, kind = slots - count, records_left - count, 'x'
  end_slot = format('%d', slots)
end

-- Stamps have no token. A stamp that differs from that in the view is newer, and stays.
if write and foreign_write == seen_write then to_delete[#to_delete + 1], write, foreign_write_until_ms = 'write', nil, 0 end
if foreign_read and foreign_read == seen_read then to_delete[#to_delete + 1], read, foreign_read = 'read', nil, nil end
if covered == seen_read then covered = 0 end
foreign_read_until_ms = (foreign_read or covered > 0) and max(foreign_read or 0, covered) + match(limits, '^%d+') + 1 or 0
--@admit
--@readers
--@writer
--@finish
if recallable then
  --@channel
  local published = redis.pcall('SPUBLISH', channel .. ':call', recallable)
  if type(published) == 'table' then unpublished = ' unpublished' end
end
if kind == 'x' and slots > 0 then reply[1] = 'forced - ' .. seconds .. ' ' .. micros .. ' 1' end
reply[1] = reply[1] .. unpublished
return reply
