//! All members of a cluster that this process has seen. This module chooses the members that are asked next for the
//! slot map.
//!
//! Replicas are members as well as primaries. If all known primaries have been replaced, the replicas know the new
//! primaries.
//!
//! An *unlisted* member is a member that the newest map does not name. It stays in the list, because the newest map may
//! be wrong. The number of unlisted members is limited, and they are asked last. By now, the address of an unlisted
//! member may belong to another cluster. So its map is used only if this map shares at least one node with the newest
//! map. The map of a node that the user named is always used.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::net::slots::SlotMap;

/// Limit for the members that are asked at the same time.
pub(super) const MAX_ASKED: usize = 3;
/// Limit for the unlisted members, which the newest map does not name.
const MAX_UNLISTED: usize = 1024;

/// Class of a member. Members of an earlier class are asked first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum AskOrder {
    Connected,
    Unconnected,
    Suspect,
    /// The newest map does not name the member.
    Unlisted,
}

#[derive(Debug)]
pub(super) struct Members {
    members: HashMap<Arc<str>, Member>,
    /// Number of the present cycle. A cycle consists of several rounds, and asks no member twice.
    cycle: u64,
    /// Number of maps that members have sent so far.
    maps: u64,
    /// Node ids that the newest map contains.
    ids: HashSet<String>,
    last_to_answer: Option<Arc<str>>,
    /// Number of the cycle in which `last_to_answer` answered.
    answered_in: u64,
}

#[derive(Clone, Copy, Debug)]
struct Member {
    /// Number of the cycle in which the member was asked last.
    asked: u64,
    /// Number of the newest map that named the member. Maps are numbered in the order of their arrival.
    listed: u64,
    /// True if the user named the member. The list keeps such a member for ever.
    is_seed: bool,
}

impl Members {
    pub(super) fn new(seeds: impl IntoIterator<Item = String>) -> Self {
        let member = Member { asked: 0, listed: 0, is_seed: true };
        let members = seeds.into_iter().map(|seed| (Arc::from(seed), member)).collect();
        Self { members, cycle: 1, maps: 0, ids: HashSet::new(), last_to_answer: None, answered_in: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    pub(super) fn has(&self, address: &str) -> bool {
        self.members.contains_key(address)
    }

    pub(super) fn is_seed(&self, address: &str) -> bool {
        self.members.get(address).is_some_and(|member| member.is_seed)
    }

    pub(super) fn seeds(&self) -> Vec<Arc<str>> {
        self.members.iter().filter(|(_, member)| member.is_seed).map(|(address, _)| Arc::clone(address)).collect()
    }

    pub(super) fn answered_last(&self, address: &str) -> bool {
        self.last_to_answer.as_deref() == Some(address)
    }

    /// Returns the members to ask in the next round. Asks no member twice in one cycle.
    ///
    /// A round asks only members of one class, which is the first class that still has members to ask. Members with an
    /// open connection come first, and unlisted members come last. Suspects and unlisted members are asked only if no
    /// other member has answered in this cycle. The reason is that an old primary that is cut off from the others would
    /// name itself.
    pub(super) fn next(&mut self, order: impl Fn(&str) -> AskOrder) -> Vec<Arc<str>> {
        let mut candidates = self.unasked_members(&order);
        let has_answer = self.answered_in == self.cycle;
        if candidates.first().is_none_or(|(best, _, _)| has_answer && *best >= AskOrder::Suspect) {
            self.cycle += 1;
            candidates = self.unasked_members(&order);
        }
        candidates.truncate(MAX_ASKED);
        if let Some(&(best, _, _)) = candidates.first() {
            candidates.retain(|(order, _, _)| *order == best);
        }
        let asked: Vec<_> = candidates.into_iter().map(|(_, _, address)| address).collect();
        for address in &asked {
            if let Some(member) = self.members.get_mut(address) {
                member.asked = self.cycle;
            }
        }
        asked
    }

    /// Returns the members that were not asked in this cycle. Those to ask first come first.
    fn unasked_members(&self, order: impl Fn(&str) -> AskOrder) -> Vec<(AskOrder, u64, Arc<str>)> {
        let unasked = self.members.iter().filter(|(_, member)| member.asked < self.cycle);
        let mut candidates: Vec<_> = unasked
            .map(|(address, member)| {
                let order = if self.is_listed(member) { order(address) } else { AskOrder::Unlisted };
                (order, fastrand::u64(..), Arc::clone(address))
            })
            .collect();
        candidates.sort_unstable();
        candidates
    }

    fn is_listed(&self, member: &Member) -> bool {
        member.is_seed || member.listed == self.maps
    }

    /// Returns true if the map belongs to this cluster. If not, forgets the member that sent the map.
    pub(super) fn believes(&mut self, address: &str, map: &SlotMap) -> bool {
        let is_listed = self.members.get(address).is_some_and(|member| self.is_listed(member));
        let is_ours = is_listed || self.ids.is_empty() || !self.ids.is_disjoint(&map.ids);
        if !is_ours {
            self.members.remove(address);
        }
        is_ours
    }

    /// Begins a new cycle. Members with an open connection are then asked first again.
    pub(super) fn begin_again(&mut self) {
        self.cycle += 1;
    }

    /// Notes a map that the member at `address` sent.
    pub(super) fn on_map(&mut self, address: &Arc<str>, map: &SlotMap) {
        self.maps += 1;
        self.ids.clone_from(&map.ids);
        for listed in map.everybody().chain([address]) {
            let member = Member { asked: 0, listed: self.maps, is_seed: false };
            self.members.entry(Arc::clone(listed)).or_insert(member).listed = self.maps;
        }
        self.last_to_answer = Some(Arc::clone(address));
        self.answered_in = self.cycle;
        self.forget_unlisted();
    }

    /// Forgets unlisted members above the limit. First forgets the members that maps have not named for the longest
    /// time, and chooses at random among equals. Never forgets the member that answered last, even if its own map does
    /// not name it.
    fn forget_unlisted(&mut self) {
        let unlisted = self.members.iter().filter(|(_, member)| member.listed < self.maps && !member.is_seed);
        let mut unlisted: Vec<_> =
            unlisted.map(|(address, member)| (member.listed, fastrand::u64(..), Arc::clone(address))).collect();
        if let Some(surplus) = unlisted.len().checked_sub(MAX_UNLISTED) {
            unlisted.sort_unstable();
            for (_, _, address) in unlisted.iter().take(surplus) {
                self.members.remove(address);
            }
        }
    }
}

#[cfg(all(test, feature = "_testing"))]
#[path = "../../testing/unit/net/members.rs"]
mod tests;
