#!lua flags=no-writes
-- Returns the commands that the user may not run on the keys of the lock. Changes nothing.
-- KEYS: all keys of the lock
-- ARGV: commands, with blanks between them
-- Returns 'rights - 0 0', followed by the commands that the user may not run, or an error on a server whose integers
-- have 32 bits: the scripts write times and tokens with %d, and such a server would write other numbers
if string.format('%d', 9007199254740992) ~= '9007199254740992' then
  return redis.error_reply('ERR this server has integers of 32 bits, and locks need 64')
end
if not redis.acl_check_cmd then return 'rights - 0 0' end -- this server cannot tell
local refused = {}
for command in string.gmatch(ARGV[1], '%S+') do
  local may = true
  for _, name in ipairs(KEYS) do may = may and redis.acl_check_cmd(command, name) end
  if not may then refused[#refused + 1] = ' ' .. command end
end
return 'rights - 0 0' .. table.concat(refused)
