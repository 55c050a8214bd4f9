//! Dialect in which a node takes scripts: the form of their text, and the command by which they publish.
//!
//! A node gets the fast form first. If it refuses that text as a script, it gets the portable form from then on, until
//! the next connection of a runtime. Each new connection asks the server which commands it knows. The answer does not
//! depend on the rights of the user.

use std::sync::atomic::{AtomicBool, Ordering};

use redis::{Cmd, Value};

use super::connection::{Load, Wording};
use super::connections::Connections;
use crate::base::error::Refusal;
use crate::net::fault::{self, Fault};
use crate::net::script::{Dialect, PublishCommand, Script, ScriptForm};

/// Dialect of a node, as far as its answers have shown. A wrong value costs two more requests, or a late notification.
#[derive(Default)]
pub(super) struct Dialects {
    refuses_fast_form: AtomicBool,
    publishes_plainly: AtomicBool,
}

impl Dialects {
    pub(super) fn forget_refusal(&self) {
        self.refuses_fast_form.store(false, Ordering::Relaxed);
    }

    /// Notes the answer to [`publishing_question`]. Another answer, such as a refusal, changes nothing.
    pub(super) fn note_publishing(&self, answer: &Value) {
        if let Value::Array(commands) = answer {
            self.publishes_plainly.store(commands.contains(&Value::Nil), Ordering::Relaxed);
        }
    }
}

/// Returns the question for the commands of sharded channels. The answer has `Nil` for each command that the server does
/// not know. Subscribers and scripts need the same kind of channels, so both commands count.
pub(super) fn publishing_question() -> Cmd {
    redis::cmd("COMMAND").arg("INFO").arg("SPUBLISH").arg("SSUBSCRIBE").take()
}

/// Returns true if the words of a refusal say that the server knows no scripts, or has no engine for their language.
fn is_without_scripts(words: &str, dialect: Dialect) -> bool {
    // The portable form names no engine.
    words.contains("unknown command") || dialect.form == ScriptForm::Portable && words.contains("engine")
}

impl Connections {
    pub(super) fn dialect(&self) -> Dialect {
        let Dialects { refuses_fast_form, publishes_plainly } = &self.dialects;
        let is = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        let form = if is(refuses_fast_form) { ScriptForm::Portable } else { ScriptForm::Fast };
        let publish = if is(publishes_plainly) { PublishCommand::Plain } else { PublishCommand::Sharded };
        Dialect { form, publish }
    }

    /// Returns the meaning of a fault of a script call. If the server has refused the fast form of the script, nothing
    /// ran, and the result is [`Fault::NoScript`], so that the call is repeated in the portable form.
    pub(super) fn on_script_fault(&self, fault: Fault, script: &Script, wording: Wording) -> Fault {
        let Wording { load, dialect } = wording;
        match fault {
            Fault::Refused { refusal: Refusal::Other, message } if is_without_scripts(&message, dialect) => {
                // The rest of the message has the arguments.
                let said = message.split(", with args").next().unwrap_or_default();
                let message = format!("it runs no scripts: {said}; switch its Lua engine on, or use another server");
                Fault::Refused { refusal: Refusal::UnsupportedServer, message }
            }
            Fault::Refused { refusal: Refusal::Other, message }
                if load == Load::Text && dialect.form == ScriptForm::Fast && message.starts_with("ERR ") =>
            {
                self.dialects.refuses_fast_form.store(true, Ordering::Relaxed);
                self.conditions.note_refused_form(&self.address, &message);
                Fault::NoScript
            }
            fault => fault::with_command(fault, script.text(dialect)),
        }
    }
}
