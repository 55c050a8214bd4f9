//! Scenarios: the work of the peers.

mod crowd;
mod held;
mod loads;
mod market;
mod recovery;

use super::*;

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Scenario {
    /// Locks of their own for 1, 16, 256 tasks.
    Uncontended,
    /// One lock that everybody writes.
    HotWrite,
    /// One lock that 99 of 100 read.
    HotRead,
    /// 10,000 locks are held and renewed: what others feel of it.
    Held,
    /// One waits, one leaves.
    WakeUp,
    /// Three locks at once for each of 1, 16, 256 tasks.
    ThreeNames,
    /// The market of the articles in which the schemes were published.
    Market,
    /// The same load on 1, 2, 3 primaries.
    Shards,
    /// One task that reads one name again and again.
    SoleReader,
    /// A primary is killed: how soon locks are had again.
    Recovery,
}

impl Scenario {
    /// Returns the comparisons. Nothing is measured before a turn is taken.
    pub(crate) fn comparisons(self, setting: &Setting) -> Vec<Comparison<'_>> {
        match self {
            Self::Uncontended => loads::uncontended(setting),
            Self::HotWrite => crowd::writes(setting),
            Self::HotRead => crowd::reads(setting),
            Self::Held => held::comparisons(setting),
            Self::WakeUp => loads::wake_up(setting),
            Self::ThreeNames => loads::three_names(setting),
            Self::Market => market::comparisons(setting),
            Self::Shards => loads::shards(setting),
            Self::SoleReader => loads::sole_reader(setting),
            Self::Recovery => recovery::comparisons(setting),
        }
    }

    /// Returns true if the scenario runs on all chosen servers, and not only on the first one. Results depend on the
    /// server's scripts, on its push messages, and on how it divides these among the clients. These four scenarios have
    /// all of that.
    pub(crate) fn is_for_all_servers(self) -> bool {
        matches!(self, Self::Uncontended | Self::HotWrite | Self::HotRead | Self::WakeUp)
    }

    pub(crate) fn name(self) -> String {
        self.to_possible_value().expect("none is hidden").get_name().to_owned()
    }

    pub(crate) fn about(self) -> String {
        let value = self.to_possible_value().expect("none is hidden");
        value.get_help().map(ToString::to_string).unwrap_or_default()
    }
}

/// Settings of a run.
pub(crate) struct Setting {
    pub(crate) server: Server,
    pub(crate) span: Duration,
    pub(crate) market: Duration,
    pub(crate) lessened: Lessened,
    /// Programs that could not be built, with the reasons.
    pub(crate) absent: Vec<(Program, String)>,
}

/// Size of the counts: full, or small to show that everything runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lessened {
    No,
    Yes,
}

/// Subject of a table.
pub(crate) struct About<'a> {
    pub(crate) group: &'a str,
    pub(crate) title: String,
    pub(crate) at: Option<(f64, &'a str)>,
    pub(crate) better: Better,
    pub(crate) columns: &'a [&'a str],
    /// Notes that a reader of the table needs.
    pub(crate) notes: &'a [&'a str],
}

/// Figures of one turn, one for each column, and the versions of the measured programs.
pub(crate) type Figures = (Vec<f64>, String);

/// Takes a turn.
type Take<'a> = Box<dyn Fn() -> Result<Figures, String> + 'a>;

/// Peers that are compared with each other.
pub(crate) struct Comparison<'a> {
    /// Table with a row for each entrant, and no turns.
    pub(crate) table: Table,
    pub(crate) entrants: Vec<Entrant<'a>>,
}

/// Row of a comparison.
pub(crate) struct Entrant<'a> {
    pub(crate) name: String,
    /// Reason why it has no turn.
    pub(crate) refusal: Option<String>,
    pub(crate) take: Take<'a>,
}

impl Entrant<'_> {
    /// Returns an entrant that cannot take part.
    pub(crate) fn refused(name: &str, why: &str) -> Self {
        let take = Box::new(|| unreachable!("whoever is refused has no turn"));
        Self { name: name.to_owned(), refusal: Some(why.to_owned()), take }
    }

    fn row(&self) -> Row {
        Row { why: self.refusal.clone().map(Why::Cannot), ..Row::of(&self.name) }
    }
}

impl Setting {
    pub(crate) fn load(&self, shape: Shape, clients: usize, tasks: usize) -> Load {
        Load {
            shape,
            writes: ALL_WRITE,
            clients,
            tasks,
            pause_ms: 0,
            warm_ms: 0,
            span_ms: u64::try_from(self.span.as_millis()).expect("short"),
            lease_ms: u64::try_from(LEASE.as_millis()).expect("short"),
        }
    }

    /// Returns this count, or a small one if all counts are to be small.
    pub(crate) fn count(&self, full: usize) -> usize {
        if self.lessened == Lessened::Yes { full.min(20) } else { full }
    }

    /// Returns the comparison of these entrants. Its table names the server, because a run may have several servers.
    pub(crate) fn compare<'a>(&'a self, about: &About<'_>, entrants: Vec<Entrant<'a>>) -> Comparison<'a> {
        let server = self.server;
        let table = Table {
            group: format!("{}, {server}", about.group),
            title: format!("{}, {server}", about.title),
            at: about.at.map(|(at, of)| (at, of.to_owned())),
            better: about.better,
            columns: about.columns.iter().map(ToString::to_string).collect(),
            rows: entrants.iter().map(Entrant::row).collect(),
            notes: about.notes.iter().map(ToString::to_string).collect(),
        };
        Comparison { table, entrants }
    }

    /// Returns an entrant for each of `kinds`. All of them take the same `turn`, except the refused ones.
    pub(crate) fn entrants<'a>(
        &'a self,
        kinds: impl Fn(Kind) -> bool,
        refusal: impl Fn(Kind) -> Option<String>,
        turn: impl Fn(Kind) -> Result<Figures, String> + Clone + 'a,
    ) -> Vec<Entrant<'a>> {
        let entrant = |kind: Kind| {
            let turn = turn.clone();
            Entrant {
                name: kind.name().to_owned(),
                refusal: self.absence(kind).or_else(|| refusal(kind)),
                take: Box::new(move || turn(kind)),
            }
        };
        Kind::all().iter().copied().filter(|kind| kinds(*kind)).map(entrant).collect()
    }

    /// Returns the comparison of `kinds` that carry a load. Peers without reads carry none that needs them.
    pub(crate) fn carried<'a>(
        &'a self,
        about: &About<'_>,
        carried: Carried,
        kinds: impl Fn(Kind) -> bool,
        refusal: impl Fn(Kind) -> Option<&'static str>,
    ) -> Comparison<'a> {
        let needs_reads = carried.load.writes < ALL_WRITE;
        let refusal = |kind: Kind| {
            let no_reads = (needs_reads && !kind.facts().reads).then_some("it has no reads");
            refusal(kind).or(no_reads).map(str::to_owned)
        };
        self.compare(about, self.entrants(kinds, refusal, move |kind| carried.turn(self, kind)))
    }

    /// Returns the reason why the program of this lock is missing, if it is.
    fn absence(&self, kind: Kind) -> Option<String> {
        let program = kind.facts().program;
        self.absent.iter().find(|(absent, _)| *absent == program).map(|(_, why)| why.clone())
    }
}

/// Load of a scenario.
#[derive(Clone)]
pub(crate) struct Carried {
    load: Load,
    processes: usize,
    /// Place of the servers. Without it, the usual one of the lock.
    place: Option<Place>,
    figures: fn(&Turn) -> Vec<f64>,
}

impl Carried {
    fn by_one_process(load: Load, figures: fn(&Turn) -> Vec<f64>) -> Self {
        Self { load, processes: 1, place: None, figures }
    }

    fn turn(&self, setting: &Setting, kind: Kind) -> Result<Figures, String> {
        let facts = kind.facts();
        let load = Load { warm_ms: facts.program.warm_ms(), ..self.load.clone() };
        let servers = Servers::start(self.place.unwrap_or(facts.place), setting.server);
        let turn = carry(kind, &servers, &load, self.processes)?;
        if turn.is_empty() { Err("nobody was served".to_owned()) } else { Ok(((self.figures)(&turn), turn.versions)) }
    }
}
