//! Answers of one server about itself.

use std::collections::BTreeMap;
use std::time::Duration;

use redis::Value;
use redis_rwlock::DurationText;

use super::durability::Asked;
use super::finding::{Finding, Findings, Level};
use super::link::{Failure, Link};
use super::rights::{self, Refused, WaitRight};
use crate::settings::{Place, Settings};

const SLOTS: u16 = 16384;

/// Consecutive slots, and the address of their primary.
#[derive(Debug)]
struct SlotRange {
    first: u16,
    last: u16,
    owner: String,
}

#[derive(Debug, Default)]
pub(super) struct Survey {
    hello: BTreeMap<String, String>,
    /// `None` if the user may not read it.
    memory: Option<BTreeMap<String, String>>,
    replication: Option<BTreeMap<String, String>>,
    /// Slots of the cluster and their primaries, as this node knows them.
    slots: Option<Vec<SlotRange>>,
    /// Time of silence after which the other nodes of a cluster mark a node as failed. `None` if the user may not read
    /// it.
    node_timeout: Option<Duration>,
    wants_no_password: bool,
    /// `None` if the server was not asked.
    pub(super) wait: Option<WaitRight>,
    pub(super) refused: Vec<Refused>,
}

impl Survey {
    pub(super) async fn ask(address: &str, settings: &Settings, wants_replicas: bool) -> Result<Self, Failure> {
        let mut link = Link::open(address, settings).await?;
        let hello = hello(&mut link).await?;
        let mut survey = Self { hello, wants_no_password: link.wants_no_password, ..Self::default() };
        // Further findings about such a server would only be consequences of this defect.
        if survey.is_too_old() || survey.is_sentinel() {
            return Ok(survey);
        }
        // A proxy may pass on only requests that name a key, and the other answers are those of any server behind it.
        if let Place::Proxy(_) = settings.place() {
            return Ok(survey);
        }
        survey.memory = link.ask(&["INFO", "memory"]).await.ok().map(|info| fields(&info));
        survey.replication = link.ask(&["INFO", "replication"]).await.ok().map(|info| fields(&info));
        if survey.is_in_cluster() {
            survey.slots = link.ask(&["CLUSTER", "SLOTS"]).await.ok().map(|map| owned_slots(&map));
            let timeout = link.ask(&["CONFIG", "GET", "cluster-node-timeout"]).await.ok();
            let timeout = timeout.and_then(|timeout| pairs(&timeout).into_values().next()?.parse().ok());
            survey.node_timeout = timeout.map(Duration::from_millis);
        }
        survey.wait = Some(rights::try_wait(&mut link).await?);
        survey.refused = rights::try_all(&mut link, settings, survey.is_in_cluster(), wants_replicas).await?;
        Ok(survey)
    }

    fn said(&self, field: &str) -> &str {
        self.hello.get(field).map_or("", String::as_str)
    }

    fn is_in_cluster(&self) -> bool {
        self.said("mode") == "cluster"
    }

    fn is_sentinel(&self) -> bool {
        self.said("mode") == "sentinel"
    }

    pub(super) fn is_primary(&self) -> bool {
        matches!(self.said("role"), "master" | "primary")
    }

    fn is_too_old(&self) -> bool {
        let mut numbers = self.said("version").split('.').map(|part| part.parse::<u32>().ok());
        if self.said("version").is_empty() {
            // A proxy need not tell it.
            return false;
        }
        let version = (numbers.next().flatten(), numbers.next().flatten());
        let least = if self.said("server") == "valkey" { (Some(7), Some(2)) } else { (Some(7), Some(0)) };
        version < least
    }

    /// Reports the defects of this server, except missing rights.
    pub(super) fn tell(&self, node: &str, place: &Place, asked: Option<Asked>, findings: &mut Findings) {
        let mut problem = |check, message: String, advice: &str| {
            findings.add(Finding::new(Level::Problem, check, message).at(node).advise(advice));
        };
        if self.is_too_old() {
            let message = format!("{} {} is too old", self.said("server"), self.said("version"));
            return problem("version", message, "use Redis 7.0 or newer, or Valkey 7.2 or newer");
        }
        if let Place::Proxy(_) = place {
            let message = "behind a proxy waiters ask once a second, and nothing is known of the servers".to_owned();
            findings.add(Finding::new(Level::Note, "proxy", message).at(node));
            return;
        }
        if self.is_sentinel() {
            return problem("topology", "the server is a Sentinel".to_owned(), "give its URL with --sentinel");
        }
        match (place, self.said("mode")) {
            (Place::Node(_) | Place::Sentinel(_), "cluster") => {
                problem(
                    "topology",
                    "the server is part of a cluster".to_owned(),
                    "give URLs of the cluster with --cluster or RWLOCK_CLUSTER",
                );
            }
            (Place::Cluster(_), "standalone") => {
                problem(
                    "topology",
                    "the server is part of no cluster".to_owned(),
                    "give its URL with --url or RWLOCK_NODE",
                );
            }
            _ => {}
        }
        if matches!(place, Place::Node(_)) && !self.is_primary() {
            let at = ["master_host", "master_port"].map(|field| self.replication.as_ref()?.get(field).cloned());
            let primary = match at {
                [Some(host), Some(port)] => format!(" of {host}:{port}"),
                _ => String::new(),
            };
            problem(
                "role",
                format!("the server is a replica{primary}, so it takes no writes"),
                "give the URL of the primary",
            );
        }
        self.tell_memory(node, findings);
        if self.wants_no_password {
            let message = "the URL has a password, but the server requires none: any client may log in";
            let finding = Finding::new(Level::Warning, "login", message).at(node);
            findings.add(finding.advise("set a password for the server's user, or remove the password from the URL"));
        }
        self.tell_replicas(node, asked, findings);
    }

    fn tell_memory(&self, node: &str, findings: &mut Findings) {
        let mut problem = |check, message: String, advice: &str| {
            findings.add(Finding::new(Level::Problem, check, message).at(node).advise(advice));
        };
        if let Some((used, max)) = self.full_memory() {
            let message = format!("memory is full, {used} bytes of maxmemory {max}: the server grants no locks");
            problem("memory", message, "free memory, or raise maxmemory");
        }
        if let Some(policy) = self.memory.as_ref().and_then(|memory| memory.get("maxmemory_policy"))
            && policy != "noeviction"
        {
            let message = format!("maxmemory-policy is {policy}: the server removes held locks when memory is short");
            problem(
                "memory-policy",
                message,
                "CONFIG SET maxmemory-policy noeviction, and the same in the server's configuration file",
            );
        }
    }

    fn tell_replicas(&self, node: &str, asked: Option<Asked>, findings: &mut Findings) {
        if let Some(Asked::At(asked)) = asked
            && self.is_primary()
            && let Some(online) = self.online_replicas()
            && online < usize::from(asked.get())
        {
            let message = format!("{online} of the {asked} required replicas follow this primary");
            let finding = Finding::new(Level::Problem, "replicas", message).at(node);
            findings.add(
                finding.advise("attach more replicas, or require fewer (--replicas or RWLOCK_DURABILITY_REPLICAS)"),
            );
        }
    }

    /// Returns the used memory and its limit in bytes, if the server refuses new data. The used memory is without the
    /// parts that do not count against the limit.
    fn full_memory(&self) -> Option<(u64, u64)> {
        let number = |field: &str| self.memory.as_ref()?.get(field)?.parse::<u64>().ok();
        let used = number("used_memory")?.saturating_sub(number("mem_not_counted_for_evict").unwrap_or(0));
        let max = number("maxmemory").filter(|max| *max > 0)?;
        (used > max).then_some((used, max))
    }

    pub(super) fn online_replicas(&self) -> Option<usize> {
        Some(replicas(self.replication.as_ref()?).filter(|said| said.contains("state=online")).count())
    }

    /// Returns the addresses of the server's replicas.
    pub(super) fn replicas(&self) -> Vec<String> {
        let address = |said: &str| {
            let value = |name: &str| said.split(',').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
            Some(format!("{}:{}", value("ip")?, value("port")?))
        };
        self.replication.iter().flat_map(replicas).filter_map(address).collect()
    }
}

/// Asks a server for its kind, version, mode and role. A server or a proxy that does not know `HELLO` may tell them in
/// its answers to `INFO`.
async fn hello(link: &mut Link) -> Result<BTreeMap<String, String>, Failure> {
    match link.ask(&["HELLO"]).await {
        Ok(hello) => return Ok(pairs(&hello)),
        Err(error) if matches!(error.code(), Some("ERR" | "NOPROTO")) => {}
        Err(error) => return Err(error.into()),
    }
    let server = link.ask(&["INFO", "server"]).await.map(|info| fields(&info)).unwrap_or_default();
    let replication = link.ask(&["INFO", "replication"]).await.map(|info| fields(&info)).unwrap_or_default();
    let first = |names: [&str; 2]| names.iter().find_map(|name| server.get(*name).cloned());
    let name = if server.contains_key("valkey_version") { "valkey" } else { "redis" };
    let fields = [
        ("server", (!server.is_empty()).then(|| name.to_owned())),
        ("version", first(["valkey_version", "redis_version"])),
        ("mode", first(["server_mode", "redis_mode"])),
        ("role", replication.get("role").cloned()),
    ];
    Ok(fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect())
}

/// Returns the fields of INFO about each replica: `ip=10.0.0.2,port=6379,state=online,…`.
fn replicas(replication: &BTreeMap<String, String>) -> impl Iterator<Item = &str> {
    let numbered = |field: &str| field.strip_prefix("slave").is_some_and(|number| number.parse::<u32>().is_ok());
    replication.iter().filter(move |(field, _)| numbered(field)).map(|(_, said)| &**said)
}

/// Returns a node's map of the slots, with the node's address. Prefers primaries.
fn map(surveys: &BTreeMap<String, Survey>) -> Option<(&String, &[SlotRange])> {
    let maps = surveys.iter().filter_map(|(node, survey)| Some((node, survey.is_primary(), survey.slots.as_ref()?)));
    maps.min_by_key(|(_, is_primary, _)| !is_primary).map(|(node, _, map)| (node, &**map))
}

pub(super) fn tell_slots(surveys: &BTreeMap<String, Survey>, findings: &mut Findings) {
    let Some((node, owned)) = map(surveys) else { return };
    let gaps = gaps(owned.iter().map(|range| (range.first, range.last)).collect());
    if !gaps.is_empty() {
        let range =
            |(first, last): &(u16, u16)| if first == last { first.to_string() } else { format!("{first}-{last}") };
        let slots = gaps.iter().map(range).collect::<Vec<_>>().join(", ");
        let finding = Finding::new(Level::Problem, "slots", format!("no primary owns slots {slots}"));
        findings.add(finding.at(node).advise("assign the slots to a primary: redis-cli --cluster fix"));
    }
}

/// Reports node timeouts that are too long for the lease. A failover begins only after the node timeout, and the holds
/// at the failed primary must outlast it.
pub(super) fn tell_node_timeout(surveys: &BTreeMap<String, Survey>, lease: Duration, findings: &mut Findings) {
    let known: Vec<_> = surveys.iter().filter_map(|(node, survey)| Some((node, survey.node_timeout?))).collect();
    let Some(longest) = known.iter().map(|(_, timeout)| *timeout).max() else {
        let message = "cluster-node-timeout is not known, since the user lacks +config|get";
        let advice = format!("check that cluster-node-timeout is below half of the lease ({})", DurationText(lease));
        return findings.add(Finding::new(Level::Note, "node-timeout", message).advise(advice));
    };
    if longest >= lease {
        let message = format!(
            "cluster-node-timeout is {} and the lease is {}: when a primary fails, its locks are lost before a replica takes over",
            DurationText(longest),
            DurationText(lease)
        );
        let finding = Finding::new(Level::Warning, "node-timeout", message).advise(format!(
            "CONFIG SET cluster-node-timeout {} on every node and the same in each configuration file, or a longer lease (RWLOCK_LEASE)",
            (lease / 3).as_millis()
        ));
        let too_long = known.iter().filter(|(_, timeout)| *timeout >= lease);
        findings.add(too_long.fold(finding, |finding, (node, _)| finding.at(node)));
    }
}

/// Returns the ranges of slots by their primary.
pub(super) fn owners(surveys: &BTreeMap<String, Survey>) -> BTreeMap<String, Vec<(u16, u16)>> {
    let mut owners: BTreeMap<String, Vec<(u16, u16)>> = BTreeMap::new();
    for range in map(surveys).map(|(_, map)| map).into_iter().flatten() {
        owners.entry(range.owner.clone()).or_default().push((range.first, range.last));
    }
    owners
}

/// Returns the ranges of slots that are outside of all these ranges.
fn gaps(mut owned: Vec<(u16, u16)>) -> Vec<(u16, u16)> {
    owned.sort_unstable();
    let (mut gaps, mut next) = (Vec::new(), 0);
    for (first, last) in owned {
        if first > next {
            gaps.push((next, first - 1));
        }
        next = next.max(last + 1);
    }
    if next < SLOTS {
        gaps.push((next, SLOTS - 1));
    }
    gaps
}

fn owned_slots(map: &Value) -> Vec<SlotRange> {
    let Value::Array(ranges) = map else { return Vec::new() };
    let slot = |value: Option<&Value>| match value {
        Some(Value::Int(slot)) => u16::try_from(*slot).ok().filter(|slot| *slot < SLOTS),
        _ => None,
    };
    let owner = |value: Option<&Value>| match value {
        Some(Value::Array(node)) => match node.as_slice() {
            [host, Value::Int(port), ..] => Some(format!("{}:{port}", text(host)?)),
            _ => None,
        },
        _ => None,
    };
    let range = |range: &Value| match range {
        Value::Array(parts) => Some(SlotRange {
            first: slot(parts.first())?,
            last: slot(parts.get(1))?,
            owner: owner(parts.get(2)).unwrap_or_default(),
        }),
        _ => None,
    };
    ranges.iter().filter_map(range).collect()
}

/// Reads alternating names and texts, as in the answer to HELLO.
fn pairs(reply: &Value) -> BTreeMap<String, String> {
    let parts: Vec<&Value> = match reply {
        Value::Array(parts) => parts.iter().collect(),
        Value::Map(parts) => parts.iter().flat_map(|(name, value)| [name, value]).collect(),
        _ => Vec::new(),
    };
    let pair = |pair: &[&Value]| Some((text(pair.first()?)?, text(pair.get(1)?)?));
    parts.chunks(2).filter_map(pair).collect()
}

/// Reads lines `name:value`, as in the answer to INFO.
fn fields(reply: &Value) -> BTreeMap<String, String> {
    let text = text(reply).unwrap_or_default();
    let field = |line: &str| line.trim_end().split_once(':').map(|(name, value)| (name.to_owned(), value.to_owned()));
    text.lines().filter_map(field).collect()
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text.clone()),
        _ => None,
    }
}
