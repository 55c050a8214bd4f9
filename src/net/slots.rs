//! Slot map: the owner of each slot, as a cluster has reported it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use redis::Value;

use crate::base::key::SLOTS;
use crate::net::node::{info_text, list_items};

/// Slot map. For each slot with an owner it has the address (`host:port`) of this owner, which is a primary. It also
/// has the addresses of the replicas that the cluster reported with these primaries.
#[derive(Clone, Debug, Default)]
pub(super) struct SlotMap {
    addresses: Vec<Arc<str>>,
    /// Position of each address in `addresses`.
    indexes: HashMap<Arc<str>, u16>,
    /// Position of the owner of each slot in `addresses`.
    owners: Vec<Option<u16>>,
    replicas: HashSet<Arc<str>>,
    /// Node ids of all primaries and replicas. A map from Sentinels has no ids.
    pub(super) ids: HashSet<String>,
}

impl SlotMap {
    /// Reads a reply to `CLUSTER SLOTS`. `on_announced` converts each address in the reply. The host of such an address
    /// may be empty.
    pub(super) fn parse(reply: &Value, on_announced: impl Fn(&str) -> String) -> Option<Self> {
        let mut map = Self { owners: vec![None; usize::from(SLOTS)], ..Self::default() };
        for range in list_items(reply)? {
            let [Value::Int(first), Value::Int(last), primary, replicas @ ..] = list_items(range)? else {
                return None;
            };
            let owner = map.index_of(&on_announced(&node_address(primary)?))?;
            let owned = usize::try_from(*first).ok()?..=usize::try_from(*last).ok()?;
            map.owners.get_mut(owned)?.fill(Some(owner));
            map.ids.extend(std::iter::once(primary).chain(replicas).filter_map(node_id));
            // A replica with an unreadable address is left out, because the rest of the map is still valid.
            map.replicas
                .extend(replicas.iter().filter_map(node_address).map(|replica| Arc::from(on_announced(&replica))));
        }
        Some(map)
    }

    /// Returns a map in which the node at this address owns all slots.
    pub(super) fn whole(address: &str) -> Self {
        let mut map = Self::default();
        map.owners = vec![map.index_of(address); usize::from(SLOTS)];
        map
    }

    pub(super) fn owner(&self, slot: u16) -> Option<&Arc<str>> {
        let index = (*self.owners.get(usize::from(slot))?)?;
        self.addresses.get(usize::from(index))
    }

    /// Returns true if the map names the node at this address as a primary.
    pub(super) fn has(&self, address: &str) -> bool {
        self.indexes.contains_key(address)
    }

    /// Notes the new owner of one slot.
    pub(super) fn set_owner(&mut self, slot: u16, address: &str) {
        if self.owners.is_empty() {
            self.owners = vec![None; usize::from(SLOTS)];
        }
        if let Some(index) = self.index_of(address)
            && let Some(owner) = self.owners.get_mut(usize::from(slot))
        {
            *owner = Some(index);
        }
    }

    /// Returns the addresses of all primaries and replicas in the map. An address may come twice.
    pub(super) fn everybody(&self) -> impl Iterator<Item = &Arc<str>> {
        self.addresses.iter().chain(&self.replicas)
    }

    /// Returns the addresses of all owners of slots. Each address comes once.
    pub(super) fn owners(&self) -> impl Iterator<Item = &Arc<str>> {
        let indexes: HashSet<u16> = self.owners.iter().copied().flatten().collect();
        self.addresses
            .iter()
            .enumerate()
            .filter_map(move |(index, address)| indexes.contains(&u16::try_from(index).ok()?).then_some(address))
    }

    /// Returns a slot without an owner, or `None` if each slot has an owner.
    pub(super) fn orphan(&self) -> Option<usize> {
        self.owners.iter().position(Option::is_none)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.addresses.is_empty()
    }

    /// Returns the slots that have another owner in this map than in `before`. Slots with the same old owner and the
    /// same new owner form one group. The groups are in the order of their first slots.
    pub(super) fn moves_since(&self, before: &Self) -> Vec<Moved> {
        let mut moves: Vec<(Owners<'_>, Vec<Range>)> = Vec::new();
        for slot in 0..SLOTS {
            let (was, owner) = (before.owner(slot), self.owner(slot));
            if was == owner {
                continue;
            }
            let at = moves.iter().position(|(owners, _)| *owners == (was, owner)).unwrap_or(moves.len());
            if at == moves.len() {
                moves.push(((was, owner), Vec::new()));
            }
            let ranges = &mut moves[at].1;
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == slot => *last = slot,
                _ => ranges.push((slot, slot)),
            }
        }
        moves
            .into_iter()
            .map(|((was, owner), ranges)| Moved { slots: text_of(&ranges), owner: owner.cloned(), was: was.cloned() })
            .collect()
    }

    fn index_of(&mut self, address: &str) -> Option<u16> {
        if let Some(index) = self.indexes.get(address) {
            return Some(*index);
        }
        let index = u16::try_from(self.addresses.len()).ok()?;
        let address: Arc<str> = address.into();
        self.addresses.push(Arc::clone(&address));
        self.indexes.insert(address, index);
        Some(index)
    }
}

fn node_address(node: &Value) -> Option<String> {
    let [host, Value::Int(port), ..] = list_items(node)? else { return None };
    let host = match host {
        Value::BulkString(_) | Value::SimpleString(_) => info_text(host)?,
        _ => "",
    };
    Some(format!("{host}:{port}"))
}

fn node_id(node: &Value) -> Option<String> {
    info_text(list_items(node)?.get(2)?).map(str::to_owned)
}

/// Completes an address that a node announced. If the address has no host, it gets the host of `asked`, the address of
/// the node that announced it.
pub(super) fn complete(address: &str, asked: &str) -> String {
    let port = address.strip_prefix(':').or_else(|| address.strip_prefix("?:"));
    // The text after a colon at the beginning is a port only if it consists of digits. Otherwise it is the rest of an
    // IPv6 address, which can also begin with a colon.
    let port = port.filter(|port| port.bytes().all(|byte| byte.is_ascii_digit()));
    match (port, asked.rsplit_once(':')) {
        (Some(port), Some((host, _))) => format!("{host}:{port}"),
        _ => address.to_owned(),
    }
}

/// Old owner and new owner of some slots.
type Owners<'a> = (Option<&'a Arc<str>>, Option<&'a Arc<str>>);

/// First and last slot of a range.
type Range = (u16, u16);

/// Limit for the number of ranges in one line of the log.
const MAX_RANGES: usize = 8;

/// Returns ranges as text, such as `0-5460,7000`. If there are more than [`MAX_RANGES`], the text gives only the number
/// of the other ranges.
fn text_of(ranges: &[Range]) -> String {
    let range = |(first, last): &Range| if first == last { first.to_string() } else { format!("{first}-{last}") };
    let text = ranges.iter().take(MAX_RANGES).map(range).collect::<Vec<_>>().join(",");
    match ranges.len().saturating_sub(MAX_RANGES) {
        0 => text,
        more => format!("{text} and {more} more ranges"),
    }
}

/// Slots whose owner has changed, with their new owner and their old owner.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Moved {
    pub(super) slots: String,
    pub(super) owner: Option<Arc<str>>,
    pub(super) was: Option<Arc<str>>,
}

#[cfg(all(test, feature = "_testing"))]
#[path = "../../testing/unit/net/slots.rs"]
mod tests;
