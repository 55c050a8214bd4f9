#!lua flags=no-writes
-- Shows who holds the lock. O(readers), for operators.
-- KEYS: the readers (zset), the writer (string)
-- ARGV: none
-- Returns {'view', '', server_us, last_token, 0, 0, {id, mode, since_ms, remaining_ms, id, …}, {}}: live holds only
local read_key, write_key = KEYS[1], KEYS[2]

local time = redis.call('TIME')
local server_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(server_us / 1000)
local writer = redis.call('GET', write_key)
local members = redis.call('ZRANGE', read_key, 0, -1, 'WITHSCORES')

local holders, last, since_ms = {}, 0, {}
local function show(id, mode, since, remaining_ms)
  local n = #holders
  holders[n + 1], holders[n + 2], holders[n + 3], holders[n + 4] = id, mode, since, remaining_ms
end
local writer_ms = writer and redis.call('PEXPIRETIME', write_key)
if writer and (writer_ms < 0 or writer_ms > now_ms) then -- else dead, and the server is yet to remove it
  local id, since = string.match(writer, '^(%S+) (%d+) %d+$')
  -- A value that is not ours blocks like one of ours: shown under the name '?'.
  show(id or '?', 'w', tonumber(since or 0), math.max(0, writer_ms - now_ms))
end
for i = 1, #members, 2 do -- by score: what is kept under negative scores comes before the readers
  local member, score = members[i], tonumber(members[i + 1])
  if member == '#token' then
    last = -score
  elseif string.sub(member, 1, 1) == '@' then
    since_ms[string.sub(member, 2)] = -score
  elseif score > now_ms then
    show(member, 'r', since_ms[member] or 0, score - now_ms)
  end
end
return {'view', '', server_us, last, 0, 0, holders, {}}
