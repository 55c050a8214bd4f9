//! 10,000 locks are held and renewed: the costs of their holder, and the delays of other clients.

use super::*;

const LOCKS: usize = 10_000;
const LEASE_MS: u64 = 10_000;

pub(super) fn comparisons(setting: &Setting) -> Vec<Comparison<'_>> {
    let about = About {
        group: "Held locks",
        title: format!(
            "{} locks held by one client, and another client's pairs of scripts beside it",
            setting.count(LOCKS)
        ),
        at: None,
        better: Better::Less,
        columns: &["others' p99, with / without", "with us", "without us", "holder's % of a core"],
        notes: &[
            "Lease 10 s where it can be set; `rlock` comes with as long a one",
            "The others are one task with lock-shaped scripts and nothing around",
        ],
    };
    // A peer with its locks in its own memory delays no other client, so it is not asked.
    let entrants = setting.entrants(is_asked, refusal, |kind| beside_others(setting, kind));
    vec![setting.compare(&about, entrants)]
}

/// Returns a length of a turn in which each lock is renewed.
fn span_ms(setting: &Setting) -> u64 {
    setting.load(Shape::Own, 1, 1).span_ms.max(LEASE_MS / 2)
}

/// Returns true for the peers to measure. Our other settings renew their holds as the one on one node does.
fn is_asked(kind: Kind) -> bool {
    kind.role() == Role::Lock && (!kind.is_ours() || matches!(kind, Kind::Ours | Kind::OursTwoKeys))
}

fn refusal(kind: Kind) -> Option<String> {
    (!kind.facts().renews).then(|| "it renews nothing by itself".to_owned())
}

fn beside_others(setting: &Setting, kind: Kind) -> Result<Figures, String> {
    let servers = Servers::start(kind.facts().place, setting.server);
    let span_ms = span_ms(setting);
    // The other client is the same for all peers, so its delays come from the server and the machine.
    let other = Load { warm_ms: 300, span_ms, ..setting.load(Shape::Own, 1, 1) };
    let others = || carry(Kind::FloorLockShaped, &servers, &other, 1);
    let without = others()?;
    let held = Load { lease_ms: LEASE_MS, span_ms, ..setting.load(Shape::Held, 1, setting.count(LOCKS)) };
    let holder = Worker::start(kind, &servers, &held)?;
    // Waits until the first renewals are under way. There are none in the first third of a lease.
    thread::sleep(Duration::from_millis(LEASE_MS * 4 / 10));
    holder.begin()?;
    let with = others()?;
    let outcome = holder.outcome(&held)?;
    let share = 100.0 * outcome.cpu_ns as f64 / outcome.elapsed_ns.max(1) as f64;
    let p99 = |turn: &Turn| turn.quantile_us(0.99);
    Ok((vec![p99(&with) / p99(&without), p99(&with), p99(&without), share], holder.ready.clone()))
}
