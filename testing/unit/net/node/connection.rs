use super::*;
use crate::net::Script;

static SCRIPT: Script = Script::new("return ARGV[1]");

fn command_of(call: &Call, wording: Wording, not_after: ServerTime) -> Cmd {
    let Wording { load, dialect } = wording;
    let text = call.script.text(dialect);
    let (name, script) = match load {
        Load::Digest => ("EVALSHA", redis::Script::new(text).get_hash().to_owned()),
        Load::Text => ("EVAL", text.to_owned()),
    };
    // The additional bytes are for two short numbers and the name of the command.
    let mut command = Cmd::with_capacity(call.parts + 4, call.encoded.len() + script.len() + 32);
    command.arg(name).arg(&script).arg(call.keys);
    for key in 0..call.keys {
        command.arg(call.part(key));
    }
    if call.expiry == Expiry::ResponseTimeout {
        command.arg(not_after.as_millis_up());
    }
    for arg in call.keys..call.parts {
        command.arg(call.part(arg));
    }
    command
}

#[test]
fn calls_are_encoded_as_the_library_does() {
    let mut call = Call::new(&SCRIPT, 0);
    call.key(["rwlock", ":", "lock"]);
    call.key(["é", "", ""]);
    call.arg("");
    call.echoed_arg("an\r\nid");
    for expiry in [Expiry::Never, Expiry::ResponseTimeout] {
        call.expiry = expiry;
        for load in [Load::Digest, Load::Text] {
            let not_after = ServerTime::from_micros(1_234_567_890);
            let wording = Wording { load, dialect: Dialect::default() };
            let request = Request::Call { call: &call, wording, not_after };
            let mut bytes = b"before".to_vec();
            request.encode(&mut bytes);
            assert_eq!(
                bytes,
                [b"before".as_slice(), &command_of(&call, wording, not_after).get_packed_command()].concat()
            );
        }
    }
}
