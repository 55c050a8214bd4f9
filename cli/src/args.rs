//! The command line.

use std::convert::Infallible;
use std::ffi::OsString;
use std::num::NonZeroU8;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

/// Exit codes, for `help`, `help run` and their manual pages.
macro_rules! exit_codes {
    () => {
        "\
Exit codes:
  0    done; inspect: somebody holds the lock; doctor: all is well
  1    no: inspect: nobody holds the lock; force-release: nobody held it, or you did not agree; doctor: something is to be mended
  2    the command line makes no sense
  69   no server answered, or too few
  70   the operating system did not let us
  75   others hold the lock, and --wait is over (or --no-wait was given); trying again later may help
  76   the lock was lost or about to be, and the command was ended
  77   a server refused us; list: what some keys hold is not a lock of this version
  78   an option or a lock's name is not valid
  126  run: the command cannot be run
  127  run: the command was not found
  128  and more: a signal ended the command, or waiting: 128 and its number
run exits with the command's own code if the lock was ours to the end."
    };
}

const AFTER_HELP: &str = concat!(
    "\
Servers: one of --url, --cluster and --sentinel, or of RWLOCK_NODE, RWLOCK_CLUSTER and RWLOCK_SENTINEL_PRIMARY with \
RWLOCK_SENTINEL_URLS, or a file with --config. Everybody on the machine can see a URL on the command line, so give passwords \
by the environment or by a file.

Environment: all options of redis_rwlock::Config with the prefix RWLOCK, such as RWLOCK_LEASE=15s, RWLOCK_KEY_PREFIX=shop, \
RWLOCK_TLS_CA=/etc/locks/ca.pem, RWLOCK_MAX_CLOCK_SKEW=50ms. They count more than the file, and the command line more than they.

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
    /// Print JSON: answers to standard output, messages of `run` and errors to standard error, one object a line.
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

/// Places of the servers, and the options that are changed most.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Servers")]
pub(crate) struct Servers {
    /// A server, as `redis://user@host:6379/0`; `rediss://` for TLS.
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) url: Option<String>,
    /// A cluster, by some of its members: URLs with commas between them.
    #[arg(long, global = true, value_name = "URL,…", conflicts_with = "url")]
    pub(crate) cluster: Option<String>,
    /// The primary that Sentinels know by this name, and the Sentinels' URLs.
    #[arg(long, global = true, value_name = "PRIMARY=URL,…", conflicts_with_all = ["url", "cluster"])]
    pub(crate) sentinel: Option<String>,
    /// A JSON file with the fields of `redis_rwlock::Config`; also by `RWLOCK_CONFIG`.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// A file with the password of the servers; a line break at its end is not part of it.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) password_file: Option<PathBuf>,
    /// Prefix of the keys; `rwlock` by default.
    #[arg(long, global = true, value_name = "PREFIX")]
    pub(crate) key_prefix: Option<String>,
    /// Label of this program, which others see; `host:pid` by default.
    #[arg(long, global = true, value_name = "LABEL")]
    pub(crate) label: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command while the lock is held.
    ///
    /// The command has the lock's name and fencing token in RWLOCK_NAME and RWLOCK_FENCING_TOKEN. It runs in a process group of its own.
    /// SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are handed on to all of that group. What it leaves behind when
    /// it ends gets SIGTERM, and SIGKILL after the grace, before the lock is given back.
    ///
    /// While no server confirms the lock, the group gets SIGTERM when no more than the grace is left until the lock cannot be
    /// trusted any more, and SIGKILL before that moment. When the lock is lost at once, as by force-release, it gets SIGKILL at once.
    #[command(after_help = exit_codes!())]
    Run(RunOptions),
    /// Show who holds a lock and who waits for it.
    Inspect {
        /// The lock.
        name: String,
    },
    /// Show all locks that are held or waited for.
    ///
    /// Looks through all keys of the servers: a second for each million or so. The user needs the right +scan.
    List {
        /// Only those that are held.
        #[arg(long)]
        held: bool,
    },
    /// Show the locks again every second, those with the longest queue first; `q` ends it.
    Top {
        /// Only these locks, without the right +scan.
        #[arg(value_name = "NAME")]
        names: Vec<String>,
    },
    /// End all holds of a lock, of any holder. Its holders are still at work, and others may come in at once.
    ForceRelease {
        /// The lock.
        name: String,
        /// Do not ask.
        #[arg(long)]
        yes: bool,
    },
    /// Find out what is wrong with the servers, and with the rights that we have there.
    ///
    /// Tries each command that locks need on a key that nobody uses, and takes a lock of its own. Each right that is missing leaves
    /// a line in the servers' ACL LOG.
    Doctor {
        /// Number of replicas that each primary has to have; by default as many as RWLOCK_DURABILITY_REPLICAS asks for.
        #[arg(long, value_name = "N")]
        replicas: Option<NonZeroU8>,
    },
    /// Write a script that makes the shell complete this program's command line.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Write the manual page.
    Man {
        /// Page of a command, such as `run`.
        command: Option<String>,
    },
}
#[derive(Debug, Args)]
pub(crate) struct RunOptions {
    /// Share the lock with other readers.
    #[arg(short = 's', long, visible_alias = "shared")]
    pub(crate) read: bool,
    /// Have the lock alone; the default.
    #[arg(short = 'x', long, visible_alias = "exclusive", conflicts_with = "read")]
    pub(crate) write: bool,
    /// Longest wait for the lock, as 5, 0.5, 500ms or 2m; without limit by default.
    #[arg(short = 'w', long, value_name = "SECONDS", value_parser = duration_text)]
    pub(crate) wait: Option<String>,
    /// Do not wait for others.
    #[arg(short = 'n', long, visible_alias = "try", conflicts_with = "wait")]
    pub(crate) no_wait: bool,
    /// Time for which the server keeps the lock without a renewal; 10s by default. It is renewed at a third.
    #[arg(long, value_name = "SECONDS", value_parser = duration_text)]
    pub(crate) lease: Option<String>,
    /// Longest time of the command, after which it is ended; without limit by default.
    #[arg(long, value_name = "SECONDS", value_parser = duration_text)]
    pub(crate) max_hold: Option<String>,
    /// Time between SIGTERM for the command and the moment from which the lock cannot be trusted; a third of the lease by default (less
    /// than that for leases below 3s), and somewhat less than half of it at most.
    #[arg(long, value_name = "SECONDS", value_parser = duration_text)]
    pub(crate) grace: Option<String>,
    /// The lock.
    pub(crate) name: String,
    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// Returns the text of a duration with its unit: a plain number is in seconds, as in `sleep` and `flock -w`.
#[allow(clippy::unnecessary_wraps)] // clap wants a `Result`; the reader of the option refuses other texts
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
