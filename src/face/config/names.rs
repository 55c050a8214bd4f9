//! Names of the variables that [`Config`](super::Config) reads. Also names of variables that have the same prefix but
//! belong to other programs, so that `Config` must ignore them.
//!
//! Kubernetes and Docker set variables in every container. The names of these variables begin with the names of the
//! services that the container can reach. So for a service named `rwlock`, they set variables with the prefix
//! `RWLOCK_`. These variables must not prevent a program from starting.

/// Names of all variables that a configuration reads, without the prefix.
pub(crate) const FIELDS: [&str; 33] = [
    "CACHE_FOR",
    "CLUSTER",
    "DURABILITY",
    "DURABILITY_REPLICAS",
    "DURABILITY_TIMEOUT",
    "JOIN_WINDOW",
    "KEY_PREFIX",
    "LABEL",
    "LEASE",
    "LOCK_WATCHDOG_TIMEOUT",
    "MAX_CACHED",
    "MAX_CLOCK_SKEW",
    "MAX_HANDOFFS",
    "MAX_HOLD",
    "MAX_WAITERS",
    "NODE",
    "PASSWORD_FILE",
    "PROXY",
    "RECALL_TIMEOUT",
    "REENTRY",
    "RESPONSE_TIMEOUT",
    "SENTINEL_PRIMARY",
    "SENTINEL_URLS",
    "TIMESTAMP_CLIENTS_KEY_TTL",
    "TIMESTAMP_CLIENTS_READ",
    "TIMESTAMP_CLIENTS_WRITE",
    "TIMESTAMP_KEYS",
    "TLS_CA",
    "TLS_CLIENT_CERTIFICATE",
    "TLS_CLIENT_KEY",
    "TLS_SERVER_NAME",
    "UNREACHABLE_AFTER",
    "WAIT_TIMEOUT",
];

/// Variables of the program `redis-rwlock`. Its command `run` sets `FENCING_TOKEN` and `NAME` for the child process, and
/// with several locks `FENCING_TOKEN_<number>` and `NAME_<number>`. `CONFIG` has the path of the configuration file, and
/// `MANAGER` the kind of the manager.
const OF_THE_PROGRAM: [&str; 4] = ["CONFIG", "FENCING_TOKEN", "MANAGER", "NAME"];

/// Owner of an environment variable; see [`Config::variable_owner`](super::Config::variable_owner).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum VariableOwner {
    /// The variable is a field of the configuration.
    Config,
    /// The variable belongs to Kubernetes, to Docker, or to the program `redis-rwlock`.
    Others,
    /// The name of the variable resembles the name of this field, which the user probably meant.
    Misspelt(&'static str),
    /// The name matches and resembles no field, and is no variable of a known program.
    Unknown,
}

/// Returns the owner of the variable `name`, which has no prefix here.
pub(crate) fn owner_of(name: &str) -> VariableOwner {
    if FIELDS.contains(&name) {
        return VariableOwner::Config;
    }
    if OF_THE_PROGRAM.contains(&name) || is_of_one_of_several_locks(name) || is_link(name) {
        return VariableOwner::Others;
    }
    let near = FIELDS.iter().map(|field| (distance(&name.to_uppercase(), field), *field)).min();
    match near {
        Some((distance, field)) if distance <= tolerance(field) => VariableOwner::Misspelt(field),
        _ => VariableOwner::Unknown,
    }
}

/// Returns true for the names of the variables that `run` sets for each lock if it holds several.
fn is_of_one_of_several_locks(name: &str) -> bool {
    let number = name.strip_prefix("NAME_").or_else(|| name.strip_prefix("FENCING_TOKEN_"));
    number.is_some_and(|number| number.parse::<u16>().is_ok())
}

/// Returns true for names of variables that Kubernetes sets for a service, or Docker for a linked container. The forms
/// are `SERVICE_HOST`, `SERVICE_PORT`, `SERVICE_PORT_<name>`, `PORT` and `PORT_<number>_<protocol>`. The last form may
/// end with `_PROTO`, `_PORT` or `_ADDR`. Words of the service's name may precede each form. For example, Kubernetes
/// sets `RWLOCK_NODE_SERVICE_HOST` for the service `rwlock-node`, and without the prefix `RWLOCK_` the name is
/// `NODE_SERVICE_HOST`.
fn is_link(name: &str) -> bool {
    let words: Vec<&str> = name.split('_').collect();
    let is_number = |word: &str| word.parse::<u16>().is_ok();
    let is_protocol = |word: &str| matches!(word, "TCP" | "UDP" | "SCTP");
    (0..words.len()).any(|at| match &words[at..] {
        ["SERVICE", "HOST"] | ["SERVICE", "PORT", ..] | ["PORT"] => true,
        ["PORT", number, protocol] | ["PORT", number, protocol, "PROTO" | "PORT" | "ADDR"] => {
            is_number(number) && is_protocol(protocol)
        }
        _ => false,
    })
}

/// Returns the largest number of typing errors with which a name still counts as a misspelt `field`. For a short field
/// the number is one, because two changed letters often make another word of a short name.
fn tolerance(field: &str) -> usize {
    if field.len() < 6 { 1 } else { 2 }
}

/// Counts the typing errors by which `name` differs from `field`: missing, added and replaced characters, and swapped
/// neighbours. This number is the *optimal string alignment distance*.
fn distance(name: &str, field: &str) -> usize {
    let (name, field): (Vec<char>, Vec<char>) = (name.chars().collect(), field.chars().collect());
    // The algorithm fills a matrix row by row. Three rows are enough, because a swap needs the row before the previous
    // row.
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=field.len()).collect();
    for (row, letter) in name.iter().enumerate() {
        let mut line = vec![row + 1];
        for (column, other) in field.iter().enumerate() {
            let replaced = above[column] + usize::from(letter != other);
            let mut least = replaced.min(above[column + 1] + 1).min(line[column] + 1);
            let swaps = row > 0 && column > 0 && *letter == field[column - 1] && name[row - 1] == *other;
            if swaps {
                least = least.min(before[column - 1] + 1);
            }
            line.push(least);
        }
        before = std::mem::replace(&mut above, line);
    }
    above[field.len()]
}

#[cfg(all(test, feature = "_testing"))]
#[path = "../../../testing/unit/face/config/names/tests.rs"]
mod tests;
