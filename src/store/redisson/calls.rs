//! Calls of the scripts, with their keys and arguments.

use super::names::Names;
use super::{ACQUIRE, CONVERT, FORCE, INSPECT, LEAVE, RENEW, commands};
use crate::base::key::Key;
use crate::net::{Call, Expiry, Script};
use crate::store::lua::{RIGHTS, ids, letter, whole_millis};
use crate::store::{AcquireRequest, AcquisitionId, RenewalRequest, View};

/// Builds a call with the keys that each script has: the lock, and its tokens.
fn call(script: &'static Script, key: &Key) -> Call {
    let mut call = Call::new(script, key.slot());
    call.key([key.name(), "", ""]);
    call.key([&Names::of(key).tokens(), "", ""]);
    call
}

/// Builds the same call with the timeout of one hold as a third key.
fn call_of_hold(script: &'static Script, key: &Key, id: &AcquisitionId) -> Call {
    let mut call = call(script, key);
    call.key([&Names::of(key).timeout(id.as_str()), "", ""]);
    call
}

pub(super) fn acquire(key: &Key, request: &AcquireRequest) -> Call {
    let mut call = call_of_hold(&ACQUIRE, key, &request.id);
    call.echoed_arg(request.id.as_str());
    call.arg(letter(request.mode));
    call.number(whole_millis(request.lease));
    call.expiry = Expiry::ResponseTimeout;
    call.grants = true;
    call
}

pub(super) fn release(key: &Key, id: &AcquisitionId) -> Call {
    let mut call = call_of_hold(&LEAVE, key, id);
    call.echoed_arg(id.as_str());
    call
}

pub(super) fn convert(key: &Key, old: &AcquisitionId, request: &AcquireRequest) -> Call {
    let mut call = call_of_hold(&CONVERT, key, old);
    call.key([&Names::of(key).timeout(request.id.as_str()), "", ""]);
    call.arg(old.as_str());
    call.echoed_arg(request.id.as_str());
    call.arg(letter(request.mode));
    call.number(whole_millis(request.lease));
    call.expiry = Expiry::ResponseTimeout;
    call.grants = true;
    call
}

pub(super) fn renew(renewal: &RenewalRequest) -> Call {
    let mut call = call_of_hold(&RENEW, &renewal.key, &renewal.id);
    call.echoed_arg(renewal.id.as_str());
    call.number(whole_millis(renewal.lease));
    call.grants = true;
    call
}

pub(super) fn inspect(key: &Key) -> Call {
    let mut call = call(&INSPECT, key);
    call.arg(&Names::of(key).beginning());
    call
}

pub(super) fn force(key: &Key, seen: &View) -> Call {
    let mut call = call(&FORCE, key);
    call.arg(&Names::of(key).beginning());
    call.arg(&ids(seen));
    call
}

pub(super) fn rights(key: &Key, more: &[&str]) -> Call {
    let mut call = call(&RIGHTS, key);
    let commands: Vec<&str> = commands().into_iter().chain(more.iter().copied()).collect();
    call.arg(&commands.join(" "));
    call
}
