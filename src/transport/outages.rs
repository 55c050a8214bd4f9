//! Which nodes cannot be used, and since when: for the log, which tells each change once.
//!
//! By address: a fleet forgets a node that owns nothing and meets it again, and then knows nothing of what was before.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::lease::Moment;

#[derive(Debug, Default)]
pub(super) struct Outages(Mutex<HashMap<String, (Trouble, Moment)>>);

/// What is wrong with a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Trouble {
    /// It does not answer.
    Silent,
    /// It answers, and will not have us.
    Refuses,
}

impl Outages {
    /// Something is wrong with a node, since then if nothing was before. Whether that is news.
    pub(super) fn begins(&self, node: &str, trouble: Trouble, since: Moment) -> bool {
        let mut outages = self.0.lock();
        let known = outages.get(node).copied();
        let is_news = known.is_none_or(|(known, _)| known != trouble);
        if is_news {
            let since = known.map_or(since, |(_, since)| since);
            outages.insert(node.to_owned(), (trouble, since));
        }
        is_news
    }

    /// It does what it is asked. Since when it has not, if that is news.
    pub(super) fn ends(&self, node: &str) -> Option<Moment> {
        self.0.lock().remove(node).map(|(_, since)| since)
    }

    /// Nobody will ask those again that are no members any more.
    pub(super) fn retain(&self, is_member: impl Fn(&str) -> bool) {
        self.0.lock().retain(|node, _| is_member(node));
    }
}
