//! Releases that the next primary may not know of: one that a primary carried out is lost if it fails before a replica
//! has it, and the lock would stay taken until its lease ends. So they are remembered for that long, and told again to
//! whoever owns the lock after a change.

use std::collections::{BTreeMap, VecDeque};

use parking_lot::Mutex;

use crate::departure::Departure;
use crate::lease::Moment;
use crate::scheme::Route;

/// How many are remembered for one node, the latest. A replica lags by milliseconds, and a node that failed carries out no
/// more, so what others carry out meanwhile does not push these out.
const RECENT_MOST: usize = 1024;

/// What each node has carried out of late.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    departures: Mutex<BTreeMap<Route, VecDeque<Departure>>>,
}

impl Recent {
    /// Whoever the route led to has carried this out. It may have been somebody else by then, which does no harm: to tell it
    /// once more changes nothing.
    pub(crate) fn remember(&self, route: Route, departure: &Departure, now: Moment) {
        let mut departures = self.departures.lock();
        let recent = departures.entry(route).or_default();
        while recent.len() >= RECENT_MOST || recent.front().is_some_and(|first| first.server_until <= now) {
            recent.pop_front();
        }
        recent.push_back(departure.clone());
    }

    /// Takes those whose lock another node than then owns now, as far as is known, and which it may yet hold.
    pub(crate) fn take_moved(&self, route: impl Fn(&Departure) -> Route, now: Moment) -> Vec<Departure> {
        let mut moved = Vec::new();
        self.departures.lock().retain(|then, recent| {
            recent.retain(|departure| departure.server_until > now);
            recent.retain(|departure| {
                let at = route(departure);
                let stays = at.is_unknown() || at == *then;
                if !stays {
                    moved.push(departure.clone());
                }
                stays
            });
            !recent.is_empty()
        });
        moved
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::key::Key;
    use crate::scheme::Acquisition;

    fn departure(n: u64, server_until: Moment) -> Departure {
        let key = Arc::new(Key::new("rwlock", "cfg").expect("valid"));
        Departure { key, id: Acquisition::new("manager", n, "label"), server_until, stray_until: None }
    }

    fn route(address: &str) -> Route {
        Route(address.into())
    }

    fn ids(departures: &[Departure]) -> Vec<String> {
        departures.iter().map(|departure| departure.id.as_str().to_owned()).collect()
    }

    const START: Moment = Moment::from_nanos(0);

    #[test]
    fn those_of_another_owner_are_taken_once() {
        let (recent, later) = (Recent::default(), START.after(Duration::from_secs(9)));
        recent.remember(route("old"), &departure(1, later), START);
        recent.remember(route("new"), &departure(2, later), START);
        assert!(recent.take_moved(|_| route(""), START).is_empty(), "nobody is known");
        assert_eq!(ids(&recent.take_moved(|_| route("new"), START)), ["manager.1.label"]);
        assert!(recent.take_moved(|_| route("new"), START).is_empty());
    }

    #[test]
    fn what_is_over_anyway_is_forgotten() {
        let (recent, end) = (Recent::default(), START.after(Duration::from_secs(9)));
        recent.remember(route("old"), &departure(1, end), START);
        assert!(recent.take_moved(|_| route("new"), end).is_empty());
    }

    #[test]
    fn the_latest_of_each_node_are_remembered() {
        let (recent, end) = (Recent::default(), START.after(Duration::from_secs(9)));
        recent.remember(route("failed"), &departure(0, end), START);
        for n in 1..=RECENT_MOST as u64 + 1 {
            recent.remember(route("busy"), &departure(n, end), START);
        }
        let taken = recent.take_moved(|_| route("new"), START);
        assert_eq!(taken.len(), RECENT_MOST + 1);
        let ids = ids(&taken);
        assert!(ids.contains(&"manager.0.label".to_owned()), "the failed node's");
        assert!(!ids.contains(&"manager.1.label".to_owned()), "the busy node's oldest");
    }
}
