//! List of the nodes that cannot be used, with the beginning of each outage. The log reports each change once. A gauge
//! shows the number of these nodes.
//!
//! The list is by address and is kept outside of the nodes. A fleet forgets a node that owns no slots. If it uses the
//! same address again later, it creates a new node, which does not know the earlier outage.

use std::collections::HashMap;
use std::sync::OnceLock;

use parking_lot::Mutex;

use crate::base::lease::Moment;
use crate::base::metrics::UnusableNodes;

/// Nodes that cannot be used. The gauge is changed while the mutex is not locked, because the recorder of the gauge is
/// the user's code.
#[derive(Default)]
pub(super) struct Outages {
    nodes: Mutex<HashMap<String, (Trouble, Moment)>>,
    count: UnusableNodes,
    on_trouble: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// Reason why a node cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Trouble {
    /// The node does not answer.
    Silent,
    /// The node answers, but refuses the connections of this process.
    Refuses,
}

impl Outages {
    /// Notes that a node cannot be used. `since` is the beginning of the outage. If the node was in trouble already,
    /// the earlier beginning stays. Returns true if the log must report this trouble, because it is new or of another
    /// kind.
    pub(super) fn begins(&self, node: &str, trouble: Trouble, since: Moment) -> bool {
        let mut nodes = self.nodes.lock();
        let known = nodes.get(node).copied();
        let is_new = known.is_none_or(|(known, _)| known != trouble);
        if is_new {
            let since = known.map_or(since, |(_, since)| since);
            nodes.insert(node.to_owned(), (trouble, since));
        }
        drop(nodes);
        if known.is_none() {
            self.count.one_more();
        }
        self.tell_trouble();
        is_new
    }

    /// Sets the action that runs whenever a node is in trouble.
    pub(super) fn on_trouble(&self, act: Box<dyn Fn() + Send + Sync>) {
        // The result is ignored, because the router sets the action only once.
        drop(self.on_trouble.set(act));
    }

    /// Runs the action that [`on_trouble`](Self::on_trouble) set. The caller has noticed an outage of a node, or a
    /// defect of a node that answers.
    pub(super) fn tell_trouble(&self) {
        if let Some(act) = self.on_trouble.get() {
            act();
        }
    }

    /// Returns the addresses of the nodes that cannot be used.
    pub(super) fn addresses(&self) -> Vec<String> {
        self.nodes.lock().keys().cloned().collect()
    }

    /// Notes that a node works again. Returns the beginning of its outage, or `None` if there was no outage.
    pub(super) fn ends(&self, node: &str) -> Option<Moment> {
        let (_, since) = self.nodes.lock().remove(node)?;
        self.count.fewer(1);
        Some(since)
    }

    /// Forgets nodes that are no longer members, because no caller will use them again.
    pub(super) fn retain(&self, is_member: impl Fn(&str) -> bool) {
        let mut nodes = self.nodes.lock();
        let before = nodes.len();
        nodes.retain(|node, _| is_member(node));
        let gone = before - nodes.len();
        drop(nodes);
        self.count.fewer(gone);
    }
}

impl Drop for Outages {
    fn drop(&mut self) {
        self.count.fewer(self.nodes.get_mut().len());
    }
}

#[cfg(all(test, feature = "metrics"))]
mod tests {
    use super::*;
    use crate::base::metrics::recording::Recording;

    #[test]
    fn gauge_has_each_node_once_until_it_is_back_or_forgotten() {
        let recording = Recording::default();
        let outages = metrics::with_local_recorder(&recording, Outages::default);
        let gauge = || recording.told("rwlock_unusable_nodes").1;
        let now = Moment::from_nanos(1);
        assert!(outages.begins("a:1", Trouble::Silent, now));
        assert!(!outages.begins("a:1", Trouble::Silent, now));
        assert!(outages.begins("a:1", Trouble::Refuses, now), "news, and still one node");
        assert_eq!(gauge(), 1.0);
        outages.begins("b:1", Trouble::Refuses, now);
        outages.begins("c:1", Trouble::Silent, now);
        assert_eq!(gauge(), 3.0);
        assert_eq!(outages.ends("a:1"), Some(now));
        assert_eq!(outages.ends("a:1"), None);
        assert_eq!(gauge(), 2.0);
        outages.retain(|node| node == "b:1");
        assert_eq!(gauge(), 1.0);
        drop(outages);
        assert_eq!(gauge(), 0.0, "nobody asks it any more");
    }
}
