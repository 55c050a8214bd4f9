//! Locks that `run` takes, as the command line names them.

use clap::error::ErrorKind;
use clap::{ArgMatches, Args, Command, Error, FromArgMatches};
use redis_rwlock::{Mode, NamedLock, read, write};

use crate::table::shown;

/// Value of `--read` and `--write` without a name. No argument of a process can contain this character.
const NO_NAME: &str = "\0";

/// Locks in the order of the command line; at least one.
#[derive(Clone, Debug)]
pub(crate) struct Locks(Vec<NamedLock>);

/// Options and arguments that name the locks.
#[derive(Debug, Args)]
struct Given {
    /// Take this lock for reading, and share it with other readers. Without a name, take NAME for reading. For several
    /// locks, repeat this option and --write: `run` takes all of them or none.
    #[arg(long, value_name = "LOCK", num_args = 0..=1, default_missing_value = NO_NAME)]
    read: Vec<String>,
    /// Take this lock for writing, and hold it alone. Without a name, take NAME for writing; the default.
    #[arg(long, value_name = "LOCK", num_args = 0..=1, default_missing_value = NO_NAME)]
    write: Vec<String>,
    /// Take NAME for reading.
    #[arg(short = 's', long)]
    shared: bool,
    /// Take NAME for writing.
    #[arg(short = 'x', long, conflicts_with = "shared")]
    exclusive: bool,
    /// Name of the lock, if there is only one.
    name: Option<String>,
}

impl Locks {
    /// Returns the lock if there is only one.
    pub(crate) fn only(&self) -> Option<&NamedLock> {
        match &*self.0 {
            [lock] => Some(lock),
            _ => None,
        }
    }

    pub(crate) fn all(&self) -> &[NamedLock] {
        &self.0
    }

    /// Names the locks in a message: `lock cfg`, or `locks cfg, rates`.
    pub(crate) fn title(&self) -> String {
        let names: Vec<String> = self.0.iter().map(|lock| shown(lock.name())).collect();
        format!("{} {}", self.by_number("lock", "locks"), names.join(", "))
    }

    /// Returns the first word if there is one lock, else the second.
    pub(crate) fn by_number(&self, one: &'static str, several: &'static str) -> &'static str {
        if self.only().is_some() { one } else { several }
    }
}

impl Args for Locks {
    fn augment_args(command: Command) -> Command {
        Given::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Given::augment_args_for_update(command)
    }
}

impl FromArgMatches for Locks {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let Given { shared, exclusive, name, .. } = Given::from_arg_matches(matches)?;
        let (reads, writes) = (given(matches, Mode::Read), given(matches, Mode::Write));
        let is_bare = |of_mode: &[(usize, Option<NamedLock>)]| of_mode.iter().any(|(_, lock)| lock.is_none());
        let (is_read, is_write) = (shared || is_bare(&reads), exclusive || is_bare(&writes));
        let mut named: Vec<_> =
            reads.into_iter().chain(writes).filter_map(|(index, lock)| Some((index, lock?))).collect();
        named.sort_by_key(|(index, _)| *index);
        let locks = match (name, named.is_empty()) {
            (Some(_), true) if is_read && is_write => {
                return Err(unclear("a lock is taken for reading or for writing"));
            }
            (Some(name), true) if is_read => vec![read(name)],
            (Some(name), true) => vec![write(name)],
            (None, false) if !is_read && !is_write => named.into_iter().map(|(_, lock)| lock).collect(),
            (None, true) => return Err(unclear("the name of the lock is missing")),
            (_, false) => return Err(unclear("it is not clear how to take each lock")),
        };
        Ok(Self(locks))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Returns the locks of one mode, each with its place on the command line; `None` for an option without a name.
fn given(matches: &ArgMatches, mode: Mode) -> Vec<(usize, Option<NamedLock>)> {
    let (option, named): (_, fn(String) -> NamedLock) = match mode {
        Mode::Read => ("read", read),
        Mode::Write => ("write", write),
    };
    let values = matches.get_many::<String>(option).into_iter().flatten();
    let locks = values.map(|name| (name != NO_NAME).then(|| named(name.clone())));
    matches.indices_of(option).into_iter().flatten().zip(locks).collect()
}

fn unclear(problem: &str) -> Error {
    let reason = format!(
        "{problem}: give one NAME, with -s for reading; or --read LOCK and --write LOCK, once for each of several locks"
    );
    Error::raw(ErrorKind::MissingRequiredArgument, reason)
}
