//! Steps in text form.

use super::server::{Id, Reply, Request, Side, What};
use super::world::{Act, Body, CLIENTS, Deed, Fate, Rules, Stage, State, Stepped, SubscriptionState};

/// Describes a step, and takes it.
pub(super) fn told(rules: &Rules<'_>, state: &State, act: Act, names: &[u8; CLIENTS]) -> (String, Stepped) {
    let next = state.step(rules, act);
    let name = |id: Id| {
        let client = char::from(b'A' + names[rules.client(id)]);
        format!("{client}{}", usize::from(id) % rules.scene.each + 1)
    };
    let whom = |body| match body {
        Body::Request { request, .. } => name(request.id),
        Body::Answer { id, .. } | Body::Notice { id, .. } | Body::Used { id } => name(id),
        Body::Call { client, .. } => char::from(b'A' + names[usize::from(client)]).to_string(),
    };
    let line = match act {
        Act::Do { id, deed, fate, .. } => {
            let did = done(state, id, deed, &name);
            let answer = next.as_ref().map(|next| answers(state, next, &name)).unwrap_or_default();
            match fate {
                Fate::Answered => format!("{did}{answer}"),
                Fate::Lost => format!("{did}: the request is lost"),
                Fate::Late => format!("{did}: the request is late"),
                Fate::Twice => format!("{did}{answer}; a copy is on its way"),
                Fate::AnswerLost => format!("{did}: it is carried out{answer}, the answer is lost"),
                Fate::TooLate => format!("{did}: by the server's clock it comes too late"),
                Fate::AnswerLate => format!("{did}: it is carried out{answer}, the answer is late"),
            }
        }
        Act::Drop { id } => format!("{} goes away without a word", name(id)),
        Act::Deliver { at, .. } => {
            let body = state.bag.as_slice()[usize::from(at)].body;
            let answer = next.as_ref().map(|next| answers(state, next, &name)).unwrap_or_default();
            match body {
                Body::Request { request, .. } => format!("late: the server is told {}{answer}", asked(request, &name)),
                _ => format!("{} hears {}", whom(body), message_text(body)),
            }
        }
        Act::Lose { at } => {
            let body = state.bag.as_slice()[usize::from(at)].body;
            format!("lost: that {} hears {}", whom(body), message_text(body))
        }
        Act::GiveUp { id } => format!("{} gives its request up", name(id)),
        Act::Die { client } => format!("{} dies", char::from(b'A' + names[usize::from(client)])),
        Act::Tick => "a tick".to_owned(),
        Act::Wipe => "the record is lost".to_owned(),
        Act::Look => "an operator looks at the lock".to_owned(),
        Act::Force => {
            let answer = next.as_ref().map(|next| answers(state, next, &name)).unwrap_or_default();
            format!("the operator ends what it has seen{answer}")
        }
        Act::Rest { id } => format!("the guard of {} leaves, and it stays", name(id)),
        Act::Enter { id } => format!("a guard enters {}", name(id)),
        Act::Turns { client, to } => {
            let client = char::from(b'A' + names[usize::from(client)]);
            match to {
                SubscriptionState::Stands => format!("{client} subscribes to calls"),
                SubscriptionState::Broken => format!("the subscription of {client} breaks"),
                SubscriptionState::Down => format!("{client} finds its subscription broken"),
            }
        }
        Act::HearTwice { at } => {
            let body = state.bag.as_slice()[usize::from(at)].body;
            format!("{} hears {}, and is to hear it again", whom(body), message_text(body))
        }
    };
    (line, next)
}

fn side(side: Side) -> &'static str {
    match side {
        Side::Read => "read",
        Side::Write => "write",
    }
}

fn done(state: &State, id: Id, deed: Deed, name: &impl Fn(Id) -> String) -> String {
    let pass = state.passes[usize::from(id)];
    let own = name(id);
    match (deed, pass.stage) {
        (Deed::Acquire { side: to, waits: true }, _) => format!("{own} asks to {}", side(to)),
        (Deed::Acquire { side: to, waits: false }, _) => format!("{own} tries to {}", side(to)),
        (Deed::AskAgain, _) => format!("{own} asks again to {}", side(pass.side)),
        (Deed::Renew, _) => format!("{own} renews"),
        (Deed::Leave, Stage::Asks { .. }) => format!("{own} cancels"),
        (Deed::Leave, Stage::Leaves { .. }) => format!("{own} tells that it has left"),
        (Deed::Leave, _) => format!("{own} releases"),
        (Deed::Convert, _) => format!("{own} converts to {}", name(id + 1)),
        (Deed::ConvertAgain, _) => format!("{own} asks again to convert to {}", name(id + 1)),
    }
}

fn asked(request: Request, name: &impl Fn(Id) -> String) -> String {
    let own = name(request.id);
    match request.what {
        What::Leave => format!("that {own} leaves"),
        What::Force { .. } => "to end what was seen".to_owned(),
        What::Renew => format!("to renew {own}"),
        What::Acquire { mode, .. } => format!("that {own} asks to {}", side(mode)),
        What::Convert { to } => format!("to convert {} to {own}, to {}", name(request.id - 1), side(to)),
    }
}

/// Describes the answers and notifications that a step has sent.
fn answers(state: &State, next: &State, name: &impl Fn(Id) -> String) -> String {
    let fresh = next.bag.iter().filter(|message| !state.bag.as_slice().contains(message));
    let told = fresh.filter_map(|message| match message.body {
        Body::Answer { reply, .. } => Some(format!(", {}", replied(reply))),
        Body::Notice { id, grant: Some(_), .. } => Some(format!(", {} is let in", name(id))),
        Body::Notice { id, grant: None, .. } => Some(format!(", {} is next", name(id))),
        Body::Call { .. } => Some(", a call".to_owned()),
        Body::Used { id } => Some(format!(", {} is told that it is used", name(id))),
        Body::Request { .. } => None,
    });
    told.collect()
}

fn replied(reply: Reply) -> String {
    match reply {
        Reply::Granted(grant) => format!("granted for {} ticks", grant.remaining),
        Reply::Renewed { remaining, is_waited_for: true, .. } => format!("renewed for {remaining} ticks, waited for"),
        Reply::Renewed { remaining, .. } => format!("renewed for {remaining} ticks"),
        Reply::Forced { .. } => "forced".to_owned(),
        Reply::Left { held: true } => "it held".to_owned(),
        Reply::Left { held: false } => "it did not hold".to_owned(),
        Reply::Queued | Reply::Contended | Reply::Late | Reply::Lost | Reply::Refused => {
            format!("{reply:?}").to_lowercase()
        }
    }
}

fn message_text(body: Body) -> String {
    match body {
        Body::Answer { reply, .. } => format!("the answer: {}", replied(reply)),
        Body::Notice { grant: Some(ticks), .. } => format!("that it was let in, for {ticks} more ticks"),
        Body::Notice { grant: None, .. } => "that it is to ask again".to_owned(),
        Body::Call { tries: None, .. } => "that somebody waits".to_owned(),
        Body::Call { tries: Some(_), .. } => "that somebody tries".to_owned(),
        Body::Used { .. } => "that somebody is inside".to_owned(),
        Body::Request { .. } => "a request".to_owned(),
    }
}
