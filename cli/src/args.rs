//! The command line.

use std::convert::Infallible;
use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::doctor::Asked;
use crate::exit::{Code, Failure};
use crate::locks::Locks;

/// Exit codes, for the help texts and manual pages of the program and of `run`.
macro_rules! exit_codes {
    () => {
        "\
Exit codes:
  0    success; inspect: the lock is held; doctor: all is well; deadlocks: there is none
  1    inspect: the lock is free; force-release: the lock was free, or you did not agree; doctor: a problem or a warning;
       deadlocks: there may be one
  2    the command line is wrong
  69   no server answered, or too few servers answered
  70   the operating system refused an operation
  75   others hold the lock, and --wait is over or --no-wait was given; trying again later may help
  76   the lock was lost or about to be lost, so run ended the command
  77   a server refused the request; list: some keys hold no lock of this version
  78   an option or a lock's name is not valid
  126  run: the command cannot be run
  127  run: the command was not found
  128 + N  signal N ended the command, or the wait for the lock; run ends itself by SIGINT after SIGINT
Otherwise run exits with the command's own code."
    };
}

const AFTER_HELP: &str = concat!(
    "\
Servers: give one of --url, --cluster, --proxy and --sentinel, or a file with --config. Or set RWLOCK_NODE, RWLOCK_CLUSTER, \
RWLOCK_PROXY, or both \
RWLOCK_SENTINEL_PRIMARY and RWLOCK_SENTINEL_URLS. All users of the machine can read a URL on the command line. So put \
passwords into the environment or into a file.

Environment: every option of redis_rwlock::Config is a variable with the prefix RWLOCK, such as RWLOCK_LEASE=15s, \
RWLOCK_KEY_PREFIX=shop, RWLOCK_TLS_CA=/etc/locks/ca.pem, RWLOCK_MAX_CLOCK_SKEW=50ms. The environment overrides the file, and \
the command line overrides the environment.

",
    exit_codes!()
);

/// A read-write lock on Redis or Valkey, from the command line.
#[derive(Debug, Parser)]
#[command(name = "redis-rwlock", version, after_help = AFTER_HELP, propagate_version = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
    #[command(flatten)]
    pub(crate) servers: Servers,
    /// Print one JSON value per line. Messages of `run` and errors go to standard error.
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

/// Addresses of the servers, and the options that users change most often.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Servers")]
pub(crate) struct Servers {
    /// URL of a server, as `redis://user@host:6379/0`; `rediss://` for TLS.
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) url: Option<String>,
    /// URLs of some members of a cluster, separated by commas.
    #[arg(long, global = true, value_name = "URL,…", conflicts_with = "url")]
    pub(crate) cluster: Option<String>,
    /// URL of a proxy in front of a cluster or of several servers.
    #[arg(long, global = true, value_name = "URL", conflicts_with_all = ["url", "cluster"])]
    pub(crate) proxy: Option<String>,
    /// Name of the primary in the Sentinels' configuration, and the Sentinels' URLs.
    #[arg(long, global = true, value_name = "PRIMARY=URL,…", conflicts_with_all = ["url", "cluster", "proxy"])]
    pub(crate) sentinel: Option<String>,
    /// JSON file with the fields of `redis_rwlock::Config`. `RWLOCK_CONFIG` can name the file too.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// File with the servers' password. A line break at the end of the file is not part of the password.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) password_file: Option<PathBuf>,
    /// Prefix of the keys; `rwlock` by default.
    #[arg(long, global = true, value_name = "PREFIX")]
    pub(crate) key_prefix: Option<String>,
    /// Label of this process, which `inspect`, `list` and `top` show; `host:pid` by default.
    #[arg(long, global = true, value_name = "LABEL")]
    pub(crate) label: Option<String>,
    /// Manager of the locks; `redis` by default. With `redisson`, the locks are those of Redisson's `RReadWriteLock`, and
    /// the key prefix has no effect. `RWLOCK_MANAGER` can name the manager too.
    #[arg(long, global = true, value_name = "MANAGER", value_enum)]
    pub(crate) manager: Option<ManagerKind>,
}

/// Manager of the library that the program uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub(crate) enum ManagerKind {
    #[default]
    Redis,
    Redisson,
}

impl ManagerKind {
    /// Returns the manager that the command line names, or else the environment.
    pub(crate) fn of(servers: &Servers) -> Result<Self, Failure> {
        match (servers.manager, env::var("RWLOCK_MANAGER")) {
            (Some(manager), _) => Ok(manager),
            (None, Err(_)) => Ok(Self::default()),
            (None, Ok(name)) => Self::from_str(&name, false)
                .map_err(|_| Failure::new(Code::INVALID, "RWLOCK_MANAGER must be redis or redisson")),
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command while this program holds the lock.
    ///
    /// The command gets the lock's name in RWLOCK_NAME and the fencing token in RWLOCK_FENCING_TOKEN. With several locks,
    /// it gets RWLOCK_NAME_1, RWLOCK_FENCING_TOKEN_1 and so on, in the order of the options. The command runs in a
    /// process group of its own. The program forwards SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 to the
    /// whole group. When the command has ended, the other processes of the group get SIGTERM, and SIGKILL after the
    /// grace. Then the program releases the lock.
    ///
    /// The command does not get the variables whose URLs contain a password, because other users may be able to read
    /// its environment. The program names these variables on standard error.
    ///
    /// If no server confirms the lock, the server may grant it to others after a deadline. The group gets SIGTERM when
    /// only the grace is left before this deadline, and SIGKILL before the deadline itself. If a server reports that
    /// the lock is lost, for example after force-release, the group gets SIGKILL at once.
    #[command(after_help = exit_codes!())]
    Run(RunOptions),
    /// Show the holders and the waiters of a lock.
    Inspect {
        /// Name of the lock.
        name: String,
    },
    /// Show all locks: those with a holder or a waiter, and those that had one within the last minute.
    ///
    /// Scans all keys of the servers, which takes one to four seconds for each million keys. The servers' user needs
    /// the right +scan.
    List {
        /// Show only locks with a holder, and keys that are unreadable as locks.
        #[arg(long)]
        held: bool,
    },
    /// Show the locks every second, the longest queue first; `q` ends the program.
    Top {
        /// Show only these locks, for which the user needs no right +scan.
        #[arg(value_name = "NAME")]
        names: Vec<String>,
    },
    /// Show possible deadlocks: processes that wait for each other in a ring.
    ///
    /// Looks at all locks as `list` does, and looks again a second later if there is a ring. It is only a possible
    /// deadlock, because the task that holds a lock need not be the one that waits. The program does not see waits within
    /// one process.
    Deadlocks,
    /// End all holds of a lock. The holders may still be working, and others can get the lock at once.
    ForceRelease {
        /// Name of the lock.
        name: String,
        /// Do not ask for a confirmation.
        #[arg(long)]
        yes: bool,
    },
    /// Find defects of the servers, and missing rights of the servers' user.
    ///
    /// Tries each command that locks need on an unused key. If there is no problem, acquires and releases a lock at
    /// each primary. Each missing right leaves a line in the server's ACL LOG.
    Doctor {
        /// Replicas that each primary must have: a number, `all` that the servers name, or `server` for a service that
        /// needs none because it stores each write durably. The default is the value of RWLOCK_DURABILITY_REPLICAS or
        /// RWLOCK_DURABILITY.
        #[arg(long, value_name = "N")]
        replicas: Option<Asked>,
    },
    /// Write a script with which a shell completes this program's command line.
    Completions {
        /// Name of the shell.
        shell: Shell,
    },
    /// Write the manual page.
    Man {
        /// Command of this program, such as `run`, whose page to write.
        command: Option<String>,
    },
}
#[derive(Debug, Args)]
pub(crate) struct RunOptions {
    #[command(flatten)]
    pub(crate) locks: Locks,
    /// Longest wait for the lock, as 5, 0.5, 500ms or 2m; without limit by default.
    #[arg(short = 'w', long, value_name = "SECONDS", value_parser = duration_text)]
    pub(crate) wait: Option<String>,
    /// Do not wait for others.
    #[arg(short = 'n', long, visible_alias = "try", conflicts_with = "wait")]
    pub(crate) no_wait: bool,
    /// Print no message about a lock that others hold. The exit code tells it.
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Time for which the server keeps the lock without a renewal; 10s by default. The program renews the lock after a
    /// third of this time.
    #[arg(long, value_name = "SECONDS", value_parser = duration_text)]
    pub(crate) lease: Option<String>,
    /// Longest time for which `run` holds the lock. Then `run` ends the command; without limit by default.
    #[arg(long, value_name = "SECONDS", value_parser = duration_text)]
    pub(crate) max_hold: Option<String>,
    /// Time from the grant for which the lock stays taken, even if the command ends earlier. For a cron job on several
    /// machines: more than their clocks differ, less than the period minus that difference, and with -n. The lock rests
    /// after a failed command too. Only for one lock.
    #[arg(long, value_name = "SECONDS", value_parser = duration_text, conflicts_with_all = ["read", "shared"])]
    pub(crate) at_least: Option<String>,
    /// Time as for --at-least, but only if the command succeeds with exit code 0. Otherwise others can get the lock at
    /// once.
    #[arg(long, value_name = "SECONDS", value_parser = duration_text, conflicts_with_all = ["read", "shared", "at_least"])]
    pub(crate) at_least_on_success: Option<String>,
    /// Time for the command between SIGTERM and SIGKILL if no server confirms the lock. The default is a third of the
    /// lease or of --max-hold, and less for leases below 3s. The limit is somewhat less than half of the lease.
    #[arg(long, value_name = "SECONDS", value_parser = duration_text)]
    pub(crate) grace: Option<String>,
    /// Note for people, such as `deploy 4711`, which `inspect`, `list` and `top` show while `run` holds the lock; at most
    /// 4096 bytes. Only for one lock.
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,
    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// Adds the unit to the text of a duration. A plain number is in seconds, as in `sleep` and `flock -w`.
#[allow(clippy::unnecessary_wraps)] // clap requires a `Result`; the parser of the settings refuses invalid texts
fn duration_text(text: &str) -> Result<String, Infallible> {
    let is_number = text.bytes().any(|byte| byte.is_ascii_digit())
        && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
        && text.matches('.').count() <= 1;
    let number = text.strip_suffix('.').unwrap_or(text);
    Ok(match (is_number, number.starts_with('.')) {
        (true, true) => format!("0{number}s"),
        (true, false) => format!("{number}s"),
        (false, _) => text.to_owned(),
    })
}
