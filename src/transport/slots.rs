//! Which node owns which slot, as a cluster says it.

use std::sync::Arc;

use redis::Value;

use crate::key::SLOTS;

/// `host:port` of a slot's primary, for all slots that have one.
#[derive(Clone, Debug, Default)]
pub(super) struct SlotMap {
    addresses: Vec<Arc<str>>,
    /// Index into `addresses`, one for each slot.
    owners: Vec<Option<u16>>,
}

impl SlotMap {
    /// Reads the reply to `CLUSTER SLOTS` of the node at `asked`, whose host stands in where the reply leaves it out.
    pub(super) fn parse(reply: &Value, asked: &str) -> Option<Self> {
        let mut map = Self { addresses: Vec::new(), owners: vec![None; usize::from(SLOTS)] };
        let Value::Array(ranges) = reply else {
            return None;
        };
        for range in ranges {
            let Value::Array(fields) = range else {
                return None;
            };
            let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = fields.as_slice() else {
                return None;
            };
            let address = primary_address(primary, asked)?;
            let owner = map.index_of(&address)?;
            let owned = usize::try_from(*first).ok()?..=usize::try_from(*last).ok()?;
            map.owners.get_mut(owned)?.fill(Some(owner));
        }
        Some(map)
    }

    /// One node owns everything.
    pub(super) fn whole(address: &str) -> Self {
        Self { addresses: vec![address.into()], owners: vec![Some(0); usize::from(SLOTS)] }
    }

    pub(super) fn owner(&self, slot: u16) -> Option<&Arc<str>> {
        let index = (*self.owners.get(usize::from(slot))?)?;
        self.addresses.get(usize::from(index))
    }

    pub(super) fn has(&self, address: &str) -> bool {
        self.addresses.iter().any(|other| **other == *address)
    }

    /// One slot has moved.
    pub(super) fn set_owner(&mut self, slot: u16, address: &str) {
        let Some(index) = self.index_of(address) else {
            return;
        };
        if let Some(owner) = self.owners.get_mut(usize::from(slot)) {
            *owner = Some(index);
        }
    }

    pub(super) fn addresses(&self) -> &[Arc<str>] {
        &self.addresses
    }

    pub(super) fn is_empty(&self) -> bool {
        self.addresses.is_empty()
    }

    fn index_of(&mut self, address: &str) -> Option<u16> {
        let known = self.addresses.iter().position(|other| **other == *address);
        let index = known.unwrap_or_else(|| {
            self.addresses.push(address.into());
            self.addresses.len() - 1
        });
        u16::try_from(index).ok()
    }
}

fn primary_address(primary: &[Value], asked: &str) -> Option<String> {
    let [host, Value::Int(port), ..] = primary else {
        return None;
    };
    let host = match host {
        Value::BulkString(host) => std::str::from_utf8(host).ok()?,
        Value::SimpleString(host) => host,
        _ => "",
    };
    Some(complete(&format!("{host}:{port}"), asked))
}

/// An address as a node names it, with the host of the node that was asked where it names none.
pub(super) fn complete(address: &str, asked: &str) -> String {
    let port = address.strip_prefix(':').or_else(|| address.strip_prefix("?:"));
    // Digits only: an IPv6 address may begin with a colon too.
    let port = port.filter(|port| port.bytes().all(|byte| byte.is_ascii_digit()));
    match (port, asked.rsplit_once(':')) {
        (Some(port), Some((host, _))) => format!("{host}:{port}"),
        _ => address.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: i64, last: i64, host: &str, port: i64) -> Value {
        let host = Value::BulkString(host.as_bytes().to_vec());
        let primary = Value::Array(vec![host, Value::Int(port)]);
        Value::Array(vec![Value::Int(first), Value::Int(last), primary])
    }

    fn owner(map: &SlotMap, slot: u16) -> Option<&str> {
        map.owner(slot).map(AsRef::as_ref)
    }

    #[test]
    fn each_slot_has_its_primary() {
        let reply = Value::Array(vec![range(0, 99, "a", 1), range(100, 16383, "", 2)]);
        let mut map = SlotMap::parse(&reply, "asked:9").expect("readable");
        assert_eq!(owner(&map, 99), Some("a:1"));
        assert_eq!(owner(&map, 100), Some("asked:2"));
        map.set_owner(99, "b:3");
        assert_eq!((owner(&map, 98), owner(&map, 99)), (Some("a:1"), Some("b:3")));
    }

    #[test]
    fn slots_without_an_owner_have_none() {
        let map = SlotMap::parse(&Value::Array(vec![range(5, 5, "a", 1)]), "x:1").expect("readable");
        assert_eq!(owner(&map, 4), None);
    }

    #[test]
    fn addresses_without_a_host_are_completed() {
        assert_eq!(complete(":7001", "h:1"), "h:7001");
        assert_eq!(complete("?:7001", "h:1"), "h:7001");
        assert_eq!(complete("::1:7001", "h:1"), "::1:7001");
    }

    #[test]
    fn other_replies_are_refused() {
        assert!(SlotMap::parse(&Value::Int(1), "x:1").is_none());
        assert!(SlotMap::parse(&Value::Array(vec![range(0, 16384, "a", 1)]), "x:1").is_none());
    }
}
