//! A quorum of five: pairs beside three fan-outs of an empty script to the same five masters, and beside one master
//! alone; then with two of five killed, black-holed and frozen, the other three being the same. The rows take turns
//! operation by operation, so whatever else the machine does hits all of them alike.

use super::*;

enum Row {
    FanOuts(Vec<Bare>),
    Quorum(QuorumManager),
    Single(TwoKeyManager),
}

impl Row {
    async fn quorum(nodes: &[Node], others: &[Node], prefix: &str) -> Self {
        let urls: Vec<_> = nodes.iter().chain(others).map(Node::url).collect();
        let builder = QuorumManager::builder(urls).key_prefix(prefix).restarts_are_delayed();
        Self::Quorum(builder.connect().await.expect("a majority answers"))
    }

    async fn measure(&mut self) -> Duration {
        match self {
            Self::FanOuts(masters) => {
                let began = Instant::now();
                for _ in 0..3 {
                    join_all(masters.iter_mut().map(|master| master.no_op("bench"))).await;
                }
                began.elapsed()
            }
            Self::Quorum(manager) => pair(manager, "bench").await,
            Self::Single(manager) => pair(manager, "bench").await,
        }
    }
}

pub(crate) fn run(effort: Effort) {
    let (warm_up, turns) = (effort.of(300, 100, 1), effort.of(5000, 1000, 3));
    let nodes = [(); 5].map(|()| start_node());
    // Two that stop answering in one way.
    let silent = [(); 3].map(|()| [(); 2].map(|()| start_proxied_node()));
    runtime().block_on(async {
        let mut rows = [
            Row::FanOuts(join_all(nodes.iter().map(Bare::connect)).await),
            Row::Single(TwoKeyManager::builder(nodes[0].url()).connect().await.expect("it answers")),
            Row::quorum(&nodes, &[], "healthy").await,
            Row::quorum(&nodes[..3], &silent[0], "killed").await,
            Row::quorum(&nodes[..3], &silent[1], "black-holed").await,
            Row::quorum(&nodes[..3], &silent[2], "frozen").await,
        ];
        silent[0].iter().for_each(Node::kill);
        silent[1].iter().for_each(|node| node.proxy().black_hole());
        silent[2].iter().for_each(Node::pause);
        let mut times = [const { Vec::new() }; 6];
        let connections = || silent.iter().flatten().map(|node| node.proxy().connections_made()).sum::<u64>();
        let mut before = (connections(), resident_bytes(), Instant::now());
        for turn in 0..warm_up + turns {
            if turn == warm_up {
                before = (connections(), resident_bytes(), Instant::now());
                CommandStats::reset(&nodes[4]);
            }
            for (row, times) in rows.iter_mut().zip(&mut times) {
                let time = row.measure().await;
                if turn >= warm_up {
                    times.push(time);
                }
            }
        }
        let open = silent.iter().flatten().map(|node| connections_to(node.proxy().port())).max();
        println!(
            "row: six masters without answers, in {:?}: {} connections made to all of them, at most {} open to one, {} KiB \
             more memory",
            before.2.elapsed(),
            connections() - before.0,
            open.unwrap_or_default(),
            resident_bytes().saturating_sub(before.1) / 1024,
        );
        // Only the fan-outs and the quorum whose five are healthy ask this one.
        let asked = CommandStats::of(&nodes[4]).calls("evalsha") as f64 / turns as f64 - 3.0;
        println!("row: each master is asked {asked:.3} times for each acquisition and its release");
        tell_all(times);
    });
}

/// Returns the number of connections of this process to a port that it has not closed. The proxy of a silent master does
/// not see their ends.
fn connections_to(port: u16) -> usize {
    let table = std::fs::read_to_string("/proc/self/net/tcp").expect("Linux");
    let (there, established) = (format!(":{port:04X}"), "01");
    let lines = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    lines.filter(|fields| fields.len() > 3 && fields[2].ends_with(&there) && fields[3] == established).count()
}

fn tell_all(times: [Vec<Duration>; 6]) {
    let [fan_outs, single, healthy, killed, black_holed, frozen] = times.map(|mut times| p50_us(&mut times));
    println!(
        "row: a pair of the two keys at one master {single:.0} us, three fan-outs to five masters {fan_outs:.0} us"
    );
    for (what, sides) in [
        ("quorum of five, acquire and release", [healthy, fan_outs]),
        ("the same with two of five killed", [killed, healthy]),
        ("the same with two of five black-holed", [black_holed, healthy]),
        ("the same with two of five frozen", [frozen, healthy]),
    ] {
        tell_ratio(what, sides, "us", AtMost(1.5));
    }
}
