//! All tasks want the same lock.

use super::*;

const NOTE: &str = "A latency is that of an acquisition. `commands` are all that the primaries carried out for one hold, those \
     within scripts too; `scripts` are those of them that are scripts. `served` is of one client, or of one task if there is one \
     client only, in one turn. A turn lasts at least 5 ms for each task";
const COLUMNS: [&str; 10] = [
    "holds/s",
    "p50 us",
    "p99 us",
    "client us",
    "server us",
    "commands",
    "scripts",
    "served least",
    "most",
    "most/least",
];

/// Shortest length of a turn for each task. In a shorter turn, most of a thousand tasks would not be served once.
const TASK_MS: u64 = 5;
/// Number of clients above which some peers need more connections or threads than a process can have.
const MANY: usize = 100;

/// Number of processes, number of clients in each of them, and number of all tasks.
#[derive(Clone, Copy)]
struct Crowd {
    processes: usize,
    clients: usize,
    tasks: usize,
}

impl Crowd {
    const fn new(processes: usize, clients: usize, tasks: usize) -> Self {
        Self { processes, clients, tasks }
    }

    fn title(self) -> String {
        let Self { processes, clients, tasks } = self;
        match (processes, clients) {
            (1, 1) => format!("{tasks} tasks of one client"),
            (1, _) => format!("{tasks} tasks, {clients} independent clients"),
            _ => format!("{tasks} tasks, {processes} processes with a client each"),
        }
    }
}

pub(super) fn writes(setting: &Setting) -> Vec<Comparison<'_>> {
    let own = [2, 16, 100, 1000].map(|tasks| ("Hot write lock, one client", Crowd::new(1, 1, setting.count(tasks))));
    let processes = ("Hot write lock, 4 processes", Crowd::new(4, 1, setting.count(100)));
    let clients = setting.count(100);
    let independent = ("Hot write lock, independent clients", Crowd::new(1, clients, clients));
    let all = own.into_iter().chain([processes, independent]);
    all.map(|(group, crowd)| compare(setting, group, crowd, ALL_WRITE)).collect()
}

pub(super) fn reads(setting: &Setting) -> Vec<Comparison<'_>> {
    let counts = [1, 10, 100, 1000].map(|count| setting.count(count));
    let tasks = counts.map(|tasks| ("99 % reads, tasks of one client", Crowd::new(1, 1, tasks)));
    let clients = counts.map(|clients| ("99 % reads, one task for each client", Crowd::new(1, clients, clients)));
    tasks.into_iter().chain(clients).map(|(group, crowd)| compare(setting, group, crowd, 1)).collect()
}

fn compare<'a>(setting: &'a Setting, group: &str, crowd: Crowd, writes: usize) -> Comparison<'a> {
    let about = About {
        group,
        title: format!("One lock, {writes} % writes, {}", crowd.title()),
        at: Some((crowd.tasks as f64, "tasks")),
        better: Better::More,
        columns: &COLUMNS,
        notes: &[NOTE],
    };
    let mut load = Load { writes, ..setting.load(Shape::Hot, crowd.clients, crowd.tasks) };
    load.span_ms = load.span_ms.max(TASK_MS * crowd.tasks as u64);
    let is_independent = crowd.processes == 1 && crowd.clients == crowd.tasks && crowd.tasks > 1;
    let is_asked = |kind: Kind| match kind.role() {
        Role::Lock => true,
        Role::LocalLock => kind == Kind::OursInMemory,
        // A client of a ring waits for turns only.
        Role::HandOver => is_independent && writes == ALL_WRITE,
        Role::FairQueue => is_independent,
        Role::Floor | Role::ThreeLocks => false,
    };
    let load = Carried { processes: crowd.processes, ..Carried::by_one_process(load, holds) };
    setting.carried(&about, load, is_asked, |kind| refusal(kind, crowd))
}

fn refusal(kind: Kind, crowd: Crowd) -> Option<&'static str> {
    let clients = crowd.clients * crowd.processes;
    if clients > 1 && kind.role() == Role::LocalLock {
        Some("it lives in one process")
    } else if clients > 1 && kind == Kind::OursBlocking {
        Some("each manager has a thread of its own: measured with one")
    } else if clients > MANY && matches!(kind, Kind::OursQuorum | Kind::Dsync | Kind::Redisson) {
        Some("each client has several connections or threads: so many clients do not fit into a process")
    } else {
        None
    }
}

fn holds(turn: &Turn) -> Vec<f64> {
    let (least, most) = turn.served();
    // No client is left out of the ratio. A client that was never served makes it as large as it can be.
    let served = [turn.commands(), turn.scripts(), least, most, most / least.max(1.0)];
    [turn.pairs(), served.to_vec()].concat()
}
