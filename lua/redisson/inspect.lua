#!lua flags=no-writes
-- Shows the live holders of the lock, those of Redisson's clients too. If there are many, it shows some. A dead reader counts as
-- a further record: it keeps writers out until the key expires, or the last live reader leaves. The lock has no record of waiters.
-- KEYS: the lock, the tokens
-- ARGV: the beginning of the names of timeouts
-- Returns {'view - <time> last_token 0 0 more_holders 0', row, …}; a row is 'hold id mode since_ms remaining_ms'. The id of a
--   client of Redisson is its field, and its time is the time of the server, since the lock does not have it.
local call, key = redis.call, KEYS[1]
local MAX_RECORDS = 96

local time = call('TIME')
local now_ms = math.floor((time[1] * 1000000 + time[2]) / 1000)
local left_ms = math.max(0, call('PTTL', key))
local last = 0 - (call('ZMSCORE', KEYS[2], '#token')[1] or 0)
local mode = call('HGET', key, 'mode')
local writers, readers, cursor = {}, {}, '0'
repeat
  local page = mode and call('HSCAN', key, cursor, 'COUNT', MAX_RECORDS) or {'0', {}}
  cursor = page[1]
  for n = 1, #page[2], 2 do
    local field, count = page[2][n], tonumber(page[2][n + 1])
    if count and #writers + #readers < MAX_RECORDS then
      local name = string.match(field, '^(.*):write$')
      local is_writer, remaining_ms = name ~= nil, left_ms
      if not is_writer then
        name, remaining_ms = field, 0
        for i = count, 1, -1 do
          remaining_ms = math.max(remaining_ms, call('PTTL', ARGV[1] .. field .. ':rwlock_timeout:' .. string.format('%d', i)))
        end
      end
      if is_writer or remaining_ms > 0 then
        local since_ms = call('ZMSCORE', KEYS[2], field)[1] or now_ms
        local id = string.match(name, '^(%x+%..+):1$') or name
        if string.find(id, '%s') then id = '?' end
        local rows = is_writer and writers or readers
        rows[#rows + 1] = string.format('hold %s %s %.0f %.0f', id, is_writer and 'w' or 'r', since_ms, remaining_ms)
      end
    end
  end
until cursor == '0' or #writers + #readers >= MAX_RECORDS
for _, row in ipairs(readers) do writers[#writers + 1] = row end
local more = mode and math.max(0, call('HLEN', key) - 1 - #writers) or 0
return {string.format('view - %s %s %.0f 0 0 %.0f 0', time[1], time[2], last, more), unpack(writers)}
