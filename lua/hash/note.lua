#!lua
-- Sets the note of a live hold, and replaces an earlier one. A note that was set later stays. A record whose since_ms begins
-- with 0 has a note, which goes with the record.
-- KEYS: the lock
-- ARGV: id, number of the note (a later note has a higher one), text (empty: shows no note)
-- Returns 'noted id <time>' | 'none id <time>' if the hold is over | 'version id <time>'
local id, number, text = ARGV[1], ARGV[2], ARGV[3]
-- No client gives the limits, so each stamp counts.
local limits = '9007199254740000 9007199254740000'

--@begin
local now_ms = seconds * 1000 + (micros - micros % 1000) / 1000
local holder, queue, write, read, stored, note = unpack(call('HMGET', key, 'h', 'u', 'write', 'read', 'R' .. id, 'n' .. id))
--@state

local field, record -- where the hold is recorded, with the sign of a note
if writer == id then
  if write == writer_stamp and writer_ms > now_ms then
    field, own_since, record = 'h', since_ms, '3 w ' .. writer_stamp .. ' 0' .. since_ms .. ' ' .. tokens .. ' ' .. id
  end
elseif sole == id or stored then
  own_ms, own_since = match(stored or sub(holder, 5), '^(%d+) (%d+)')
  if own_ms + 0 > now_ms and kind ~= 'x' and not write and own_since + 0 >= overrun_ms then
    field, record = 'R' .. id, own_ms .. ' 0' .. own_since
    if sole then field, record = 'h', '3 s ' .. record .. ' ' .. id end
  end
end
if not field then return 'none ' .. id .. ' ' .. seconds .. ' ' .. micros end
if not note or match(note, '^%d+') + 0 < number + 0 then
  call('HSET', key, 'n' .. id, number .. ' ' .. text)
  if sub(own_since, 1, 1) ~= '0' then call('HSET', key, field, record) end
end
return 'noted ' .. id .. ' ' .. seconds .. ' ' .. micros
