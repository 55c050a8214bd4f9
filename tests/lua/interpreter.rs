//! An interpreter of Lua 5.4 in the place of the server's own. Its `redis.call` goes to a real server.
//!
//! Dragonfly and Garnet have Lua 5.4. As in Dragonfly, the text of a script becomes the body of a function, and replies
//! become values as Redis makes them. A number that is no integer may not reach a command, since each server writes it in
//! its own way.

use std::cell::RefCell;
use std::collections::HashMap;

use cluster_testenv::{Client, Reply};
use mlua::{Error, Lua, Result, Table, Value, Variadic};

thread_local! {
    /// Interpreters by the hash of the script that they have loaded.
    static LOADED: RefCell<HashMap<String, Lua>> = RefCell::default();
}

/// Returns an interpreter that has loaded the script as the function `run`.
fn loaded(sha: &str, text: &str) -> Lua {
    let load = || {
        let lua = Lua::new();
        lua.load(format!("function run() {text}\nend")).exec().expect("the script compiles");
        lua
    };
    LOADED.with_borrow_mut(|loaded| loaded.entry(sha.to_owned()).or_insert_with(load).clone())
}

/// Runs the script with this hash and text, and returns its reply.
pub fn run(client: &mut Client, (sha, text): (&str, &str), keys: &[String], args: &[&str]) -> Reply {
    let lua = loaded(sha, text);
    let client = RefCell::new(client);
    let ask = |args: &Variadic<Value>| -> Result<Reply> {
        let args: Vec<Vec<u8>> = args.iter().map(argument).collect::<Result<_>>()?;
        Ok(client.borrow_mut().command(&args).expect("the server answers"))
    };
    let ran = lua.scope(|scope| {
        let redis = lua.create_table()?;
        let call = scope.create_function(|lua, args| match ask(&args)? {
            Reply::Error(text) => Err(Error::runtime(text)),
            reply => value(lua, &reply),
        })?;
        redis.set("call", call)?;
        redis.set("pcall", scope.create_function(|lua, args| value(lua, &ask(&args)?))?)?;
        redis.set("error_reply", lua.create_function(|lua, text: String| value(lua, &Reply::Error(text)))?)?;
        let globals = lua.globals();
        globals.set("redis", redis)?;
        globals.set("KEYS", keys)?;
        globals.set("ARGV", args)?;
        reply(&globals.get::<mlua::Function>("run")?.call::<Value>(())?)
    });
    ran.unwrap_or_else(|error| Reply::Error(error.to_string()))
}

/// Returns the bytes of an argument.
fn argument(value: &Value) -> Result<Vec<u8>> {
    match value {
        Value::String(text) => Ok(text.as_bytes().to_vec()),
        Value::Integer(number) => Ok(number.to_string().into_bytes()),
        other => Err(Error::runtime(format!("{other:?} is no argument of a command"))),
    }
}

/// Returns a reply as a value of Lua.
fn value(lua: &Lua, reply: &Reply) -> Result<Value> {
    let of_field = |name: &str, text: &str| {
        let table = lua.create_table()?;
        table.set(name, text)?;
        Ok(Value::Table(table))
    };
    match reply {
        Reply::Simple(text) => of_field("ok", text),
        Reply::Error(text) => of_field("err", text),
        Reply::Int(number) => Ok(Value::Integer(*number)),
        Reply::Bulk(bytes) => Ok(Value::String(lua.create_string(bytes)?)),
        Reply::Nil => Ok(Value::Boolean(false)),
        Reply::Array(replies) => {
            let values = replies.iter().map(|reply| value(lua, reply)).collect::<Result<Vec<_>>>()?;
            Ok(Value::Table(lua.create_sequence_from(values)?))
        }
        other => Err(Error::runtime(format!("no reply to a script: {other:?}"))),
    }
}

/// Returns the result of a script as a reply.
fn reply(value: &Value) -> Result<Reply> {
    match value {
        Value::String(text) => Ok(Reply::Bulk(text.as_bytes().to_vec())),
        Value::Integer(number) => Ok(Reply::Int(*number)),
        Value::Table(table) => match table.get::<Option<String>>("err")? {
            Some(text) => Ok(Reply::Error(text)),
            None => rows(table),
        },
        other => Err(Error::runtime(format!("no result of a script: {other:?}"))),
    }
}

fn rows(table: &Table) -> Result<Reply> {
    let rows = table.sequence_values::<Value>().map(|row| reply(&row?));
    Ok(Reply::Array(rows.collect::<Result<_>>()?))
}

/// Returns the result of an expression.
fn result(expression: &str) -> String {
    Lua::new().load(expression).eval::<Value>().map_or_else(|error| error.to_string(), |value| format!("{value:?}"))
}

#[test]
fn interpreter_differs_from_that_of_redis_where_the_portable_form_must_not() {
    assert!(result("math.max(1, '2')").contains("attempt to compare"), "{}", result("math.max(1, '2')"));
    assert!(result("20000 / 2 .. ''").contains("10000.0"));
    assert!(result("unpack").contains("Nil"));
    assert!(
        result("#!lua\nreturn 1").contains("syntax error") || result("function f() #!lua\nend").contains("near '#'")
    );
}
