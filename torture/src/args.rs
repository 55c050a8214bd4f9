//! Arguments of the command line.

use std::ops::RangeInclusive;
use std::str::FromStr;

use super::*;

pub(crate) const HELP: &str = "\
usage: torture [OPTIONS]

Worker processes use read-write locks on real servers, while torture causes faults of the servers, the network and the
workers. Then a judge checks what happened. torture exits with 0 if the locks survived all faults that the level claims to
survive, and if the judge found a planted fault.

OPTIONS
  --level LEVEL      primary (a cluster of 3 primaries with a replica each), replicated (the same), or quorum (5 masters);
                     default: primary
  --replicas N       replicas that acknowledge at the level replicated: 1 or all; default: 1
  --server SERVER    redis-7.0, redis-8.2, valkey-8.1 or valkey-9.1; redis is 7.0 and valkey is 9.1; default: redis
  --minutes M        length of the run; default: 1. Or --seconds S
  --seed N           decides the order of the faults and the work of the workers; default: 1
  --faults LIST      names, separated by commas; or `all`, `left` (what the level claims to survive), or `right` (what it does
                     not); default: all. The seed mixes several faults, and causes two at once every fourth time;
                     `restart+acl` is always both at once
  --list             prints the faults of the level
  --workers N        worker processes, 2 to 16; default: 5
  --cache-for-ms N   workers keep holds for so long after their last use (`Builder::cache_for`), until another process recalls
                     them; at the levels primary and replicated; default: 0, no hold is kept
  --groups N         tasks of each worker that take two or three locks at once, 0 to 8; default: 0. At the levels primary and
                     replicated an observer then inspects the queues, and the judge also checks their order
  --plant NAME       plants a fault that the judge has to find: late-renewal (a hold is used beyond its local deadline),
                     skipped-wait (workers of the level replicated do not wait for replicas), late-replies (of a quorum; needs
                     a build with RUSTFLAGS='--cfg redis_rwlock_plant'), queue-jumper (a process enters with the place of
                     another one in the queue; needs --groups), unordered (groups take one lock after the other in any order;
                     needs --groups, and a run of a minute)
  --markdown         prints the table as Markdown
  --keep             keeps the histories, and prints where they are
  --help";

/// Guarantee of a grant. Each level survives different faults.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Level {
    Primary,
    Replicated,
    Quorum,
}

impl Level {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Primary => "primary",
            Self::Replicated => "replicated",
            Self::Quorum => "quorum",
        }
    }
}

impl FromStr for Level {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let all = [Self::Primary, Self::Replicated, Self::Quorum];
        all.into_iter().find(|level| level.name() == name).ok_or_else(|| format!("no level is called {name:?}"))
    }
}

/// Planted fault, which the judge must find.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Plant {
    /// A task uses a hold beyond its local deadline, as if a late answer to its renewal counted.
    LateRenewal,
    /// Workers do not wait for replicas, but the judge assumes that they do.
    SkippedWait,
    /// A quorum counts masters that have not answered in time. This fault is in the crate itself.
    LateReplies,
    /// Guests use holds for which another process has waited, as if their processes had passed the queue.
    QueueJumper,
    /// Groups take one lock after the other in any order, and keep what they have. So they deadlock.
    Unordered,
}

impl Plant {
    const ALL: [Self; 5] =
        [Self::LateRenewal, Self::SkippedWait, Self::LateReplies, Self::QueueJumper, Self::Unordered];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::LateRenewal => "late-renewal",
            Self::SkippedWait => "skipped-wait",
            Self::LateReplies => "late-replies",
            Self::QueueJumper => "queue-jumper",
            Self::Unordered => "unordered",
        }
    }

    /// Returns an error unless the judge can find the fault in such a run with this build.
    fn check(plant: Option<Self>, level: Level, groups: usize) -> Result<(), String> {
        let is_built = cfg!(redis_rwlock_plant);
        match plant {
            Some(Self::QueueJumper | Self::Unordered) if groups == 0 || level == Level::Quorum => {
                Err("queue-jumper and unordered need --groups, at the level primary or replicated".into())
            }
            Some(Self::SkippedWait) if level != Level::Replicated => {
                Err("skipped-wait is for the level replicated".into())
            }
            Some(Self::LateReplies) if level != Level::Quorum || !is_built => {
                Err("late-replies is for the level quorum, built with RUSTFLAGS='--cfg redis_rwlock_plant'".into())
            }
            None | Some(Self::LateRenewal | Self::SkippedWait | Self::QueueJumper | Self::Unordered) if is_built => {
                Err("this build has the fault late-replies in it".into())
            }
            _ => Ok(()),
        }
    }
}

impl FromStr for Plant {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|plant| plant.name() == name);
        found.ok_or_else(|| format!("no planted fault is called {name:?}"))
    }
}

/// Parsed arguments.
#[derive(Clone, Debug)]
pub(crate) struct Args {
    pub(crate) level: Level,
    pub(crate) server: Server,
    pub(crate) duration: Duration,
    pub(crate) seed: u64,
    pub(crate) faults: String,
    pub(crate) workers: usize,
    /// Time for which managers cache holds.
    pub(crate) cache_for: Duration,
    /// Tasks of each worker that take several locks at once.
    pub(crate) groups: usize,
    /// Replicas that must acknowledge at the level `replicated`.
    pub(crate) replicas: Replicas,
    pub(crate) plant: Option<Plant>,
    pub(crate) style: Style,
    pub(crate) keeps: Keeps,
    pub(crate) asks: Asks,
}

/// Format of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Style {
    Plain,
    Markdown,
}

/// Treatment of the histories after the run: kept or deleted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Keeps {
    Nothing,
    Histories,
}

/// Action that the user requested.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Asks {
    Run,
    List,
    Help,
}

impl Args {
    pub(crate) fn parse(words: impl IntoIterator<Item = String>) -> Result<Self, String> {
        let mut args = Self {
            level: Level::Primary,
            server: Server::Redis70,
            duration: Duration::from_secs(60),
            seed: 1,
            faults: "all".to_owned(),
            workers: 5,
            cache_for: Duration::ZERO,
            groups: 0,
            replicas: Replicas::At(1),
            plant: None,
            style: Style::Plain,
            keeps: Keeps::Nothing,
            asks: Asks::Run,
        };
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
            match word.as_str() {
                "--level" => args.level = value()?.parse()?,
                "--server" => args.server = server(&value()?)?,
                "--minutes" => args.duration = Duration::from_secs(60 * number(&word, &value()?)?),
                "--seconds" => args.duration = Duration::from_secs(number(&word, &value()?)?),
                "--seed" => args.seed = number(&word, &value()?)?,
                "--faults" => args.faults = value()?,
                "--workers" => args.workers = count(&word, &value()?, 2..=16)?,
                "--cache-for-ms" => args.cache_for = Duration::from_millis(number(&word, &value()?)?),
                "--groups" => args.groups = count(&word, &value()?, 0..=8)?,
                "--replicas" => args.replicas = replicas(&value()?)?,
                "--plant" => args.plant = Some(value()?.parse()?),
                "--markdown" => args.style = Style::Markdown,
                "--keep" => args.keeps = Keeps::Histories,
                "--list" => args.asks = Asks::List,
                "--help" | "-h" => args.asks = Asks::Help,
                _ => return Err(format!("{word} is not known")),
            }
        }
        Plant::check(args.plant, args.level, args.groups)?;
        if args.level != Level::Replicated && args.replicas != Replicas::At(1) {
            return Err("--replicas is for the level replicated".into());
        }
        if args.level == Level::Quorum && !args.cache_for.is_zero() {
            return Err("--cache-for-ms: in a quorum nobody could call for a hold that stays".into());
        }
        Ok(args)
    }
}

fn number(word: &str, value: &str) -> Result<u64, String> {
    value.parse().map_err(|_| format!("{word}: a number"))
}

fn count(word: &str, value: &str, range: RangeInclusive<usize>) -> Result<usize, String> {
    let count = value.parse().ok().filter(|count| range.contains(count));
    count.ok_or_else(|| format!("{word}: {} to {}", range.start(), range.end()))
}

/// Reads the replicas that must acknowledge. Each primary has one, so no other number can be met.
pub(crate) fn replicas(text: &str) -> Result<Replicas, String> {
    match text {
        "1" => Ok(Replicas::At(1)),
        "all" => Ok(Replicas::All),
        _ => Err("--replicas: 1 or all".into()),
    }
}

fn server(name: &str) -> Result<Server, String> {
    match name {
        "redis" => Ok(Server::Redis70),
        "valkey" => Ok(Server::Valkey91),
        other => other.parse(),
    }
}
