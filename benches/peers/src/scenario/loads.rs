//! Scenarios in which each peer carries one load by one process.

use super::*;

const NOTE: &str =
    "`client us` and `server us` are processor time for one pair of acquisition and release, of all servers together";
/// Heads of [`Turn::pairs`].
const COLUMNS: [&str; 5] = ["pairs/s", "p50 us", "p99 us", "client us", "server us"];
/// Shortest length of a turn of wake-ups, in pauses. In a shorter turn with long pauses, the median would be that of a
/// few wake-ups.
const PAUSES: usize = 40;

/// Each task has a lock of its own, which it takes and gives back.
pub(super) fn uncontended(setting: &Setting) -> Vec<Comparison<'_>> {
    let compare = |(group, writes, tasks)| {
        let about = About {
            group,
            title: format!("{group}, {tasks} tasks, a lock for each, one client"),
            at: Some((tasks as f64, "tasks")),
            better: Better::More,
            columns: &COLUMNS,
            notes: &[NOTE],
        };
        let load = Load { writes, ..setting.load(Shape::Own, 1, tasks) };
        let is_asked = |kind: Kind| is_single(kind) && kind != Kind::Tokio;
        setting.carried(&about, Carried::by_one_process(load, Turn::pairs), is_asked, |_| None)
    };
    let groups = [("Uncontended writes", ALL_WRITE), ("Uncontended reads", 0)];
    groups.iter().flat_map(|(group, writes)| [1, 16, 256].map(|tasks| compare((*group, *writes, tasks)))).collect()
}

/// Each task takes three locks of its own, all of them or none, and gives them back.
pub(super) fn three_names(setting: &Setting) -> Vec<Comparison<'_>> {
    let group = "Three write locks at once";
    let compare = |tasks| {
        let about = About {
            group,
            title: format!("{group}, {tasks} tasks, three of their own for each, one client"),
            at: Some((tasks as f64, "tasks")),
            better: Better::More,
            columns: &COLUMNS,
            notes: &[NOTE, "A pair is the acquisition of all three and their release"],
        };
        let load = Carried::by_one_process(setting.load(Shape::Own, 1, tasks), Turn::pairs);
        setting.carried(&about, load, |kind| kind.role() == Role::ThreeLocks, |_| None)
    };
    [1, 16, 256].map(compare).into()
}

/// Load of 256 tasks on 1, 2 and 3 primaries of a cluster.
pub(super) fn shards(setting: &Setting) -> Vec<Comparison<'_>> {
    let is_at_home = |kind: Kind| matches!(kind.facts().place, Place::Cluster(_));
    let compare = |shards| {
        let about = About {
            group: "Shards of a cluster",
            title: format!("Writes of 256 tasks, a lock for each, on a cluster of {shards}"),
            at: Some((shards as f64, "shards")),
            better: Better::More,
            columns: &COLUMNS,
            notes: &["A machine with few cores has less for the client the more servers there are: see `client us`"],
        };
        let load = Carried::by_one_process(setting.load(Shape::Own, 1, 256), Turn::pairs);
        let is_asked = |kind: Kind| is_at_home(kind) || (kind.role() == Role::Lock && !kind.is_ours());
        let refusal = |kind| (!is_at_home(kind)).then_some("it is given one node, and no cluster, here");
        setting.carried(&about, Carried { place: Some(Place::Cluster(shards)), ..load }, is_asked, refusal)
    };
    [1, 2, 3].map(compare).into()
}

/// A single task reads one name again and again, and no other task wants it.
pub(super) fn sole_reader(setting: &Setting) -> Vec<Comparison<'_>> {
    let about = About {
        group: "One reader of one name",
        title: "One task that reads one name again and again".to_owned(),
        at: None,
        better: Better::More,
        columns: &["reads/s", "p50 us", "p99 us", "client us", "server us", "commands"],
        notes: &["tokio's lock asks nobody: it is `RwLock::read_owned` with its drop"],
    };
    let reads = |turn: &Turn| [turn.pairs(), vec![turn.commands()]].concat();
    let load = Load { writes: 0, ..setting.load(Shape::Hot, 1, 1) };
    vec![setting.carried(&about, Carried::by_one_process(load, reads), is_single, |_| None)]
}

fn is_single(kind: Kind) -> bool {
    matches!(kind.role(), Role::Lock | Role::LocalLock | Role::Floor)
}

/// A client waits while another one holds the lock: the time from the beginning of the release to the waiter's entry.
pub(super) fn wake_up(setting: &Setting) -> Vec<Comparison<'_>> {
    let compare = |pause_ms: u64| {
        let about = About {
            group: "Wake-up of one waiter of another client",
            title: format!("Wake-up of one waiter of another client after {pause_ms} ms"),
            at: Some((pause_ms as f64, "ms of pause")),
            better: Better::Less,
            columns: &["p50 us", "p99 us"],
            notes: &["From the beginning of the release to the waiter's entry. A turn lasts at least 40 pauses"],
        };
        let mut load = Load { pause_ms, ..setting.load(Shape::Wake, 2, 2) };
        load.span_ms = load.span_ms.max(pause_ms * setting.count(PAUSES) as u64);
        let wake_ups = |turn: &Turn| vec![turn.quantile_us(0.5), turn.quantile_us(0.99)];
        let is_asked = |kind: Kind| matches!(kind.role(), Role::Lock | Role::HandOver);
        let why = "its waiter is woken as that of the hash, and then a thread";
        let refusal = |kind| (kind == Kind::OursBlocking).then_some(why);
        setting.carried(&about, Carried::by_one_process(load, wake_ups), is_asked, refusal)
    };
    [1, 20, 150].map(compare).into()
}
