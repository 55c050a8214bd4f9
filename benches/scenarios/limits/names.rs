//! Names per process: locks that one manager holds and renews, with the default options.

use super::*;

/// Default of the crate.
const LEASE: Duration = Duration::from_secs(10);

/// Worst answers of the other process.
struct Worst {
    lost: f64,
    late: f64,
    least_ms: f64,
}

/// Time between two looks at all holds, which take the other process a tenth of a second for a million.
const LOOK: Duration = Duration::from_secs(2);

/// Looks at the holds again and again.
fn watch(holder: &mut Worker, count: usize, looks: usize) -> Result<Worst, String> {
    let mut worst = Worst { lost: 0.0, late: 0.0, least_ms: f64::INFINITY };
    for _ in 0..looks {
        thread::sleep(LOOK);
        let [_, _, lost, late, least_ms] = holder.order(count)?;
        worst.lost = worst.lost.max(lost);
        worst.late = worst.late.max(late);
        worst.least_ms = worst.least_ms.min(least_ms);
    }
    Ok(worst)
}

pub(crate) fn run(effort: Effort) {
    let loads = effort.of(
        &[1_000, 4_000, 16_000, 32_000, 64_000, 128_000, 256_000, 384_000, 512_000, 1_000_000][..],
        &[1_000, 16_000, 128_000],
        &[10, 20],
    );
    // Renewals begin after a third of the lease. After two thirds they are spread as they stay.
    let (warm, looks) = effort.of((LEASE * 2 / 3, 3), (LEASE / 2, 2), (Duration::ZERO, 1));
    let Site { prober, loader: mut holder, mut meter, .. } = Site::start("names");
    let (mut taken, mut arrivals) = (0, Arrivals::default());
    climb(["names     ", "others' p99, us"], loads, |count| {
        let began = Instant::now();
        holder.order::<5>(count)?;
        let rate = arrivals.note(count - taken, began);
        taken = count;
        thread::sleep(warm);
        meter.reset();
        let (worst, mut felt) = prober.probe_during(|| watch(&mut holder, count, looks));
        let ([client, server], bytes, worst) = (meter.shares(), meter.bytes(), worst?);
        let [client_kib, server_kib] = meter.kib_each(bytes, count);
        let failing = worst.lost + worst.late;
        let is_late = failing > 0.0 || worst.least_ms < LEASE.as_millis() as f64 / 3.0;
        let late = || format!("{} lost, {} late, {:.1} s left", worst.lost, worst.late, worst.least_ms / 1e3);
        Ok(Reading {
            watched: felt.micros(0.99),
            cells: vec![
                ("others' p50", whole(felt.micros(0.5))),
                ("least validity left, s", format!("{:.1}", worst.least_ms / 1e3)),
                ("late or lost", whole(failing)),
                ("taken a second", rate),
                ("client, % of a core", whole(client)),
                ("server, %", whole(server)),
                ("client, KiB each", client_kib),
                ("server, KiB each", server_kib),
            ],
            bytes: bytes[0].max(bytes[1]),
            failure: felt.failure.take().or_else(|| is_late.then(late)),
        })
    });
}
