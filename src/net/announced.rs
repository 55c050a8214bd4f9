//! Addresses that servers announce. This module keeps the source of each address, and finds the address at which this
//! process reaches the server.

use std::collections::{HashMap, HashSet};

use parking_lot::Mutex;

use crate::base::panics::catch_panic;
use crate::base::topology::{AddressSource, Remap};
use crate::net::slots::complete;

/// Announced addresses of one fleet. The other parts of the fleet use only the addresses at which this process reaches
/// the nodes.
pub(super) struct Announced {
    remap: Option<Remap>,
    /// Addresses that the user named.
    named: HashSet<String>,
    sources: Mutex<HashMap<String, AddressSource>>,
    /// Makes the source of an address from its announcer, and from the announced address if that was remapped.
    source_of: fn(String, Option<String>) -> AddressSource,
}

impl Announced {
    pub(super) fn new(
        remap: Option<Remap>,
        named: impl IntoIterator<Item = String>,
        source_of: fn(String, Option<String>) -> AddressSource,
    ) -> Self {
        Self { remap, named: named.into_iter().collect(), sources: Mutex::default(), source_of }
    }

    /// Returns the address at which this process reaches a server that was announced at `address`. If `address` has no
    /// host, uses the host of the announcer.
    pub(super) fn on_announced(&self, address: &str, announcer: &str) -> String {
        let announced = complete(address, announcer);
        let (reached, announced) = match self.remapped_address(&announced) {
            Some(reached) => (reached, Some(announced)),
            None => (announced, None),
        };
        // If several servers announce the address, the first of them stays the source.
        let mut sources = self.sources.lock();
        if !self.named.contains(&reached) && !sources.contains_key(&reached) {
            sources.insert(reached.clone(), (self.source_of)(announcer.to_owned(), announced));
        }
        reached
    }

    /// Returns the address to which the user's mapping maps `announced`. Returns `None` if the address stays the same.
    /// If the mapping panics, the address also stays the same. The panic hook has reported the panic then.
    fn remapped_address(&self, announced: &str) -> Option<String> {
        let remap = self.remap.as_ref()?;
        let (host, port) = announced.rsplit_once(':')?;
        let port = port.parse().ok()?;
        let (host, port) = catch_panic(|| remap.of(host, port))?;
        let reached = format!("{host}:{port}");
        (reached != announced).then_some(reached)
    }

    pub(super) fn source(&self, address: &str) -> AddressSource {
        self.sources.lock().get(address).cloned().unwrap_or_default()
    }

    /// Forgets the sources of addresses that no node has any more.
    pub(super) fn retain(&self, is_known: impl Fn(&str) -> bool) {
        self.sources.lock().retain(|address, _| is_known(address));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_remapped_once_and_keeps_its_first_source() {
        let remap = Remap::new(|host, port| (host.replace("10.0.0.", "127.0.0."), port + 1000));
        let announced = Announced::new(Some(remap), ["127.0.0.9:2001".to_owned()], |at, announced| {
            AddressSource::Cluster { at, announced }
        });
        let cluster = |at: &str, announced: &str| AddressSource::Cluster {
            at: at.to_owned(),
            announced: Some(announced.to_owned()),
        };
        assert_eq!(announced.on_announced("10.0.0.1:1", "a:9"), "127.0.0.1:1001");
        assert_eq!(announced.on_announced("10.0.0.1:1", "b:9"), "127.0.0.1:1001");
        assert_eq!(announced.source("127.0.0.1:1001"), cluster("a:9", "10.0.0.1:1"));
        assert_eq!(announced.on_announced(":7", "10.0.0.2:9"), "127.0.0.2:1007");
        assert_eq!(announced.on_announced("10.0.0.9:1001", "a:9"), "127.0.0.9:2001");
        assert_eq!(announced.source("127.0.0.9:2001"), AddressSource::User, "the user named it as well");
        announced.retain(|address| address == "127.0.0.2:1007");
        assert_eq!(announced.source("127.0.0.1:1001"), AddressSource::User);
        let shown = announced.source("127.0.0.2:1007").to_string();
        assert_eq!(shown, "announced as 10.0.0.2:7 by the cluster at 10.0.0.2:9");
    }

    #[test]
    fn mapping_that_panics_changes_nothing() {
        let remap = Remap::new(|_, _| panic!("no such host"));
        let announced = Announced::new(Some(remap), [], |at, announced| AddressSource::Sentinel { at, announced });
        assert_eq!(announced.on_announced("h:1", "s:2"), "h:1");
        assert_eq!(announced.source("h:1").to_string(), "announced by the Sentinel at s:2");
    }
}
