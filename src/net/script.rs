//! Scripts, and the dialects in which servers take them.
//!
//! A script has one text, in the form that costs a server least. Some servers refuse that form, or know no `SPUBLISH`.
//! The other texts are made from the first, when a server needs them.

use std::sync::OnceLock;

#[path = "../../lua/portable.rs"]
mod portable;

/// Form of a script's text.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum ScriptForm {
    /// Form in which the script is written. It begins with `#!lua`, and calls commands by a local name.
    #[default]
    Fast,
    /// Form for servers that refuse the other one.
    Portable,
}

/// Command by which scripts publish notifications.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum PublishCommand {
    #[default]
    Sharded,
    /// `PUBLISH`, for a server that does not know `SPUBLISH` and `SSUBSCRIBE`.
    Plain,
}

/// Dialect in which one server takes scripts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Dialect {
    pub(crate) form: ScriptForm,
    pub(crate) publish: PublishCommand,
}

impl Dialect {
    /// Number of dialects.
    const COUNT: usize = 4;

    fn index(self) -> usize {
        usize::from(self.form == ScriptForm::Portable) * 2 + usize::from(self.publish == PublishCommand::Plain)
    }
}

/// A Lua script, with its text in each dialect.
pub(crate) struct Script {
    text: &'static str,
    dialects: [OnceLock<DialectText>; Dialect::COUNT],
}

/// Text of a script in one dialect.
struct DialectText {
    /// `None` for the text of the script itself.
    text: Option<String>,
    /// First bytes of a request that calls the script by its digest.
    call_start: String,
}

impl Script {
    pub(crate) const fn new(text: &'static str) -> Self {
        Self { text, dialects: [const { OnceLock::new() }; Dialect::COUNT] }
    }

    /// Returns the names of the commands that the script calls with `redis.call`, or with a local `call`. The script needs
    /// all of them. It can do without the commands that it calls with `pcall`.
    pub(crate) fn commands(&self) -> impl Iterator<Item = &'static str> {
        let text = self.text;
        let calls = text.match_indices("call('").filter(|(at, _)| !text[..*at].ends_with('p'));
        calls.filter_map(|(at, call)| text[at + call.len()..].split('\'').next())
    }

    pub(super) fn text(&self, dialect: Dialect) -> &str {
        self.of(dialect).text.as_deref().unwrap_or(self.text)
    }

    /// Returns the first bytes of a request that calls the script by its digest, in RESP. They are the same for every
    /// call. The line before them, with the number of parts, is not included.
    pub(super) fn call_start(&self, dialect: Dialect) -> &str {
        &self.of(dialect).call_start
    }

    fn of(&self, dialect: Dialect) -> &DialectText {
        self.dialects[dialect.index()].get_or_init(|| DialectText::new(self.text, dialect))
    }
}

impl DialectText {
    fn new(text: &'static str, dialect: Dialect) -> Self {
        let formed = match dialect.form {
            ScriptForm::Fast => None,
            ScriptForm::Portable => Some(portable::portable(text)),
        };
        let formed = match dialect.publish {
            PublishCommand::Sharded => formed,
            PublishCommand::Plain => Some(portable::unsharded(formed.as_deref().unwrap_or(text))),
        };
        let script = redis::Script::new(formed.as_deref().unwrap_or(text));
        let digest = script.get_hash();
        let call_start = format!("$7\r\nEVALSHA\r\n${}\r\n{digest}\r\n", digest.len());
        Self { text: formed, call_start }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static SCRIPT: Script = Script::new(
        "#!lua flags=allow-oom\nlocal call, key = redis.call, KEYS[1]\n-- Says 'hello'.\n\
         redis.pcall('SPUBLISH', key .. ':wake', call('HGET', key, 'a -- b')) -- at last\n",
    );

    #[test]
    fn each_dialect_has_its_own_text_and_digest() {
        let forms = [ScriptForm::Fast, ScriptForm::Portable];
        let publish = [PublishCommand::Sharded, PublishCommand::Plain];
        let dialects = forms.iter().flat_map(|&form| publish.map(|publish| Dialect { form, publish }));
        let mut starts: Vec<_> = dialects.clone().map(|dialect| SCRIPT.call_start(dialect)).collect();
        for dialect in dialects {
            let text = SCRIPT.text(dialect);
            assert!(SCRIPT.call_start(dialect).contains(redis::Script::new(text).get_hash()));
            assert_eq!(text.contains("'SPUBLISH'"), dialect.publish == PublishCommand::Sharded);
            assert_eq!(text.starts_with("#!lua"), dialect.form == ScriptForm::Fast);
        }
        assert_eq!(SCRIPT.text(Dialect::default()), SCRIPT.text);
        starts.sort_unstable();
        starts.dedup();
        assert_eq!(starts.len(), Dialect::COUNT);
    }

    #[test]
    fn portable_form_writes_calls_out_and_keeps_the_lines() {
        let dialect = Dialect { form: ScriptForm::Portable, publish: PublishCommand::Sharded };
        let expected = "local unpack = table.unpack or unpack\nlocal key = KEYS[1]\n\n\
                        redis.pcall('SPUBLISH', key .. ':wake', redis.call('HGET', KEYS[1], 'a -- b'))\n";
        assert_eq!(SCRIPT.text(dialect), expected);
    }
}
