#!lua flags=no-writes
-- Shows who holds the lock and who waits for it. O(readers and waiters), for operators.
-- KEYS: the lock
-- ARGV: none
-- Returns {'view', '', server_us, last_token, foreign_write_stamp_ms, foreign_read_stamp_ms,
--   {id, mode, since_ms, remaining_ms, id, …}, {id, mode, since_ms, id, …}}: live holds, and live waiters, writers first, in their order;
--   a stamp of 0 is none, and whether it still counts is for the caller to judge
local key = KEYS[1]

local time = redis.call('TIME')
local server_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(server_us / 1000)
local all, field = redis.call('HGETALL', key), {}
for i = 1, #all, 2 do field[all[i]] = all[i + 1] end

local holders, waiters = {}, {}
local function show(id, mode, since_ms, deadline_ms)
  if tonumber(deadline_ms) <= now_ms then return end
  local n = #holders
  holders[n + 1], holders[n + 2], holders[n + 3], holders[n + 4] = id, mode, tonumber(since_ms), deadline_ms - now_ms
end
local function show_waiter(id, mode)
  if tonumber(field['U' .. id]) <= now_ms then return end
  local n = #waiters
  waiters[n + 1], waiters[n + 2], waiters[n + 3] = id, mode, tonumber(field['S' .. id])
end

local foreign_write, foreign_read = field.write, field.v
if field.W and field.write == field.D then
  foreign_write = nil
  show(field.W, 'w', field.I, field.D)
end
if field.read ~= field.m then foreign_read = field.read or foreign_read end
for slot = 1, tonumber(field.a or 0) do
  local id = field['r' .. slot]
  show(id, 'r', field['i' .. slot], field['R' .. id])
end

local id = field.N or ''
while id ~= '' do
  show_waiter(id, 'w')
  id = field['N' .. id]
end
for slot = 1, tonumber(field.c or 0) do show_waiter(field['q' .. slot], 'r') end
return {'view', '', server_us, tonumber(field.t or 0), tonumber(foreign_write or 0) or 0, tonumber(foreign_read or 0) or 0, holders, waiters}
