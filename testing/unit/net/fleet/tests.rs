use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::atomic::AtomicBool;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::refresh::LOOK_AGAIN;
use super::*;
use crate::base::options::Options;
use crate::net::fake::{TIME, command, fleet_at, hello};

async fn look_out_ends(fleet: &Fleet) {
    let ended = async {
        while fleet.refresh_task.begin().is_none() {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), ended).await.expect("the look-out ends");
}

#[tokio::test(start_paused = true)]
async fn look_out_that_has_ended_leaves_nothing_of_a_dropped_fleet() {
    let fleet = fleet_at(&["redis://127.0.0.1:1".to_owned()], &Options::default());
    fleet.look_in_background();
    assert!(fleet.refresh_task.begin().is_none());
    look_out_ends(&fleet).await;
    tokio::task::yield_now().await;
    // One of the loop, and one of the only node's connection.
    assert!(Arc::weak_count(&fleet) <= 2, "the look-out holds on to the fleet's memory");
}

/// A thousand nodes on one listener: each has an address of its own in 127/8.
struct ManyNodes {
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    dead: Mutex<HashSet<IpAddr>>,
    /// Nodes that a client connected to, and nodes that were asked for the map, in order.
    connected: Mutex<Vec<IpAddr>>,
    asked: Mutex<Vec<IpAddr>>,
    died: tokio::sync::Notify,
    /// Answers of a node to questions about keys: the first word of the question, the node, and the answer.
    answers: Mutex<Vec<(&'static str, IpAddr, String)>>,
    /// True if dead nodes keep connections, and say nothing.
    are_silent: AtomicBool,
    kept_open: Mutex<Vec<tokio::net::TcpStream>>,
}

const NODES: u16 = 1000;
const PRIMARIES: u16 = NODES / 2;

fn address(n: u16) -> IpAddr {
    let [high, low] = n.to_be_bytes();
    IpAddr::from([127, 1, high, low])
}

impl ManyNodes {
    async fn start_with(primaries: u16) -> Self {
        let listener = tokio::net::TcpListener::bind("0.0.0.0:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let shared = Arc::<Shared>::default();
        let serving = Arc::clone(&shared);
        let map = Self::map(port, primaries);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let at = stream.local_addr().expect("connected").ip();
                serving.connected.lock().push(at);
                let is_dead = serving.dead.lock().contains(&at);
                if is_dead && serving.are_silent.load(Ordering::SeqCst) {
                    serving.kept_open.lock().push(stream);
                } else if !is_dead {
                    tokio::spawn(serve(stream, at, Arc::clone(&map), Arc::clone(&serving)));
                }
            }
        });
        Self { port, shared }
    }

    /// Returns the reply to `CLUSTER SLOTS`: each primary has a replica.
    fn map(port: u16, primaries: u16) -> Arc<str> {
        let mut map = format!("*{primaries}\r\n");
        for n in 0..primaries {
            let slots = |n: u16| u32::from(n) * u32::from(crate::base::key::SLOTS) / u32::from(primaries);
            map += &format!("*4\r\n:{}\r\n:{}\r\n", slots(n), slots(n + 1) - 1);
            for node in [n, n + primaries] {
                let host = address(node).to_string();
                map += &format!("*3\r\n${}\r\n{host}\r\n:{port}\r\n$2\r\nid\r\n", host.len());
            }
        }
        map.into()
    }

    fn fleet(&self, response_timeout: Duration) -> Arc<Fleet> {
        let options = Options { response_timeout, ..Options::default() };
        fleet_at(&[format!("redis://{}:{}", address(0), self.port)], &options)
    }

    /// Starts a thousand nodes, and a fleet that the seed has answered.
    async fn ready(response_timeout: Duration) -> (Self, Arc<Fleet>) {
        let nodes = Self::start_with(PRIMARIES).await;
        let fleet = nodes.fleet(response_timeout);
        assert!(fleet.ready().await.is_ok(), "the seed answers");
        (nodes, fleet)
    }

    /// Number of connections to nodes that had a connection before.
    fn connected_again(&self) -> usize {
        let connected = self.shared.connected.lock();
        connected.len() - connected.iter().collect::<HashSet<_>>().len()
    }

    fn counts(&self) -> (usize, usize) {
        (self.shared.connected.lock().len(), self.shared.asked.lock().len())
    }

    /// Kills all nodes but these, and their connections with them.
    fn kill_all_but(&self, alive: &[u16]) {
        let dead = (0..NODES).filter(|n| !alive.contains(n)).map(address);
        self.shared.dead.lock().extend(dead);
        self.shared.died.notify_waiters();
    }
}

async fn serve(mut stream: tokio::net::TcpStream, at: IpAddr, map: Arc<str>, shared: Arc<Shared>) {
    let (mut said, mut done) = (Vec::new(), 0);
    loop {
        let died = shared.died.notified();
        if shared.dead.lock().contains(&at) {
            return;
        }
        tokio::select! {
            read = stream.read_buf(&mut said) => if read.is_err() || matches!(read, Ok(0)) { return },
            () = died => return,
        }
        while let Some((words, end)) = command(&said, done) {
            done = end;
            let answer = match (words[0].to_ascii_uppercase().as_str(), words.len()) {
                ("HELLO", _) => hello("cluster"),
                ("TIME", _) => TIME.to_owned(),
                ("CLUSTER", _) => {
                    shared.asked.lock().push(at);
                    map.to_string()
                }
                (command, _) => {
                    let answers = shared.answers.lock();
                    let answer = answers.iter().find(|(asked, of, _)| *asked == command && *of == at);
                    answer.map_or_else(|| "+OK\r\n".to_owned(), |(_, _, answer)| answer.clone())
                }
            };
            if stream.write_all(answer.as_bytes()).await.is_err() {
                return;
            }
        }
    }
}

/// Returns the answer to `SCAN` with these keys.
fn page(keys: &[&str]) -> String {
    let keys: String = keys.iter().map(|key| format!("${}\r\n{key}\r\n", key.len())).collect();
    format!("*2\r\n$1\r\n0\r\n*{}\r\n{keys}", keys.matches('$').count())
}

/// `{b}` has slot 3300, and `{a}` has slot 15495. Of two primaries, the first owns the lower half.
#[tokio::test]
async fn keys_of_slots_that_have_left_are_not_listed() {
    let nodes = ManyNodes::start_with(2).await;
    let fleet = nodes.fleet(Duration::from_secs(5));
    let listed = async |answer_of_owner: &str| {
        *nodes.shared.answers.lock() = vec![
            ("SCAN", address(0), page(&["k:{b}", "k:{a}"])),
            ("SCAN", address(1), page(&[])),
            ("HGET", address(1), answer_of_owner.to_owned()),
        ];
        let mut found = Vec::new();
        let owners = crate::net::slot_owners::SlotOwners::Many(Arc::clone(&fleet));
        owners.scan("*", &mut |key| found.push(key.to_owned())).await.map(|()| found)
    };
    let ask = format!("-ASK 15495 {}:{}\r\n", address(0), nodes.port);
    assert_eq!(listed("$-1\r\n").await.expect("listed"), ["k:{b}"], "the owner of its slot does not have it");
    assert_eq!(
        listed("-WRONGTYPE it is no hash\r\n").await.expect("listed"),
        ["k:{b}"],
        "the owner lists it, if it is a lock"
    );
    assert_eq!(listed(&ask).await.expect("listed"), ["k:{b}", "k:{a}"], "the slot is on its way here");
    assert!(listed("-ERR broken\r\n").await.is_err(), "a list must not have gaps");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousand_nodes_are_asked_by_three() {
    let (nodes, fleet) = ManyNodes::ready(Duration::from_secs(5)).await;
    assert_eq!(nodes.counts(), (1, 1));
    for slot in [0, 8000, 16383] {
        let node = fleet.owner(slot).await.expect("it is known");
        assert!(node.ready().await.is_ok(), "it answers");
    }
    // The seed owns slot 0.
    assert_eq!(nodes.counts(), (3, 1), "whoever has nothing to ask asks nobody");
    // One slot moves: the connected members are asked, once.
    let moved = format!("{}:{}", address(7), nodes.port);
    assert!(fleet.on_moved(0, &moved, &moved).is_ok());
    look_out_ends(&fleet).await;
    let (connected, asked) = nodes.counts();
    assert!(connected <= 3 && asked <= 1 + MAX_ASKED, "{connected} connections, {asked} questions");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_suspect_does_not_hold_up_questions_to_others() {
    let response_timeout = Duration::from_secs(20);
    let (nodes, fleet) = ManyNodes::ready(response_timeout).await;
    nodes.shared.are_silent.store(true, Ordering::SeqCst);
    nodes.shared.dead.lock().insert(address(1));
    let suspect = fleet.node(&format!("{}:{}", address(1), nodes.port)).expect("an address");
    let (asked, began) = (nodes.counts().1, tokio::time::Instant::now());
    fleet.suspect(&suspect, SuspectReason::Silent);
    while nodes.counts().1 < asked + 5 {
        assert!(began.elapsed() < response_timeout, "{} questions", nodes.counts().1 - asked);
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    assert!(fleet.suspects(&suspect), "it has not answered");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_of_a_thousand_nodes_are_found() {
    let (nodes, fleet) = ManyNodes::ready(Duration::from_secs(5)).await;
    nodes.kill_all_but(&[13, 99, 140, 255, 400, 511, 600, 777, 900, 999]);
    let began = tokio::time::Instant::now();
    while fleet.refresh().await.is_err() {
        assert!(began.elapsed() < Duration::from_secs(60), "each question asks others than those before");
    }
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    // The seed was connected before it died, and is asked again.
    assert!(nodes.connected_again() <= 1 + MAX_ASKED, "nobody is asked twice before all were");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_question_to_silent_nodes_goes_on_where_the_last_one_ended() {
    let (nodes, fleet) = ManyNodes::ready(Duration::from_secs(1)).await;
    // The refresh loop for the lost connection would ask in between.
    let _running = fleet.refresh_task.begin();
    nodes.shared.are_silent.store(true, Ordering::SeqCst);
    nodes.kill_all_but(&[]);
    let mut before = nodes.counts().0;
    for _ in 0..3 {
        let began = tokio::time::Instant::now();
        assert!(fleet.refresh().await.is_err(), "nobody answers");
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        let connected = nodes.counts().0;
        // One round at its beginning, and one each time that half a response timeout is over.
        assert!((1..=4 * MAX_ASKED).contains(&(connected - before)), "{}", connected - before);
        before = connected;
    }
    assert!(nodes.connected_again() <= 1, "nobody is asked twice before all were, but for the seed");
}
