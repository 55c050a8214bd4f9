//! When a router behind Sentinels asks them for the primary.

use std::net::SocketAddr;
use std::time::Instant;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::net::fake::{command, hello};

/// Time limit that is far longer than the answer of a Sentinel takes.
const BOUND: Duration = Duration::from_secs(30);
/// Shortest time between two questions in the test, in milliseconds.
const APART: u128 = 400;

/// Sentinel that names a primary, on port 6379 of a host that the test sets.
struct Sentinel {
    addr: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    host: Mutex<&'static str>,
    asked: AtomicUsize,
}

impl Sentinel {
    async fn start(host: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let addr = listener.local_addr().expect("bound");
        let shared = Arc::new(Shared { host: Mutex::new(host), asked: AtomicUsize::new(0) });
        let serving = Arc::clone(&shared);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&serving)));
            }
        });
        Self { addr, shared }
    }

    fn asked(&self) -> usize {
        self.shared.asked.load(Ordering::SeqCst)
    }
}

async fn serve(mut stream: TcpStream, shared: Arc<Shared>) {
    let (mut said, mut done) = (Vec::new(), 0);
    while stream.read_buf(&mut said).await.is_ok_and(|count| count > 0) {
        while let Some((words, end)) = command(&said, done) {
            done = end;
            let answer = match words[0].to_ascii_uppercase().as_str() {
                "HELLO" => hello("sentinel"),
                "SENTINEL" => {
                    shared.asked.fetch_add(1, Ordering::SeqCst);
                    let host = *shared.host.lock();
                    format!("*2\r\n${}\r\n{host}\r\n$4\r\n6379\r\n", host.len())
                }
                _ => "+OK\r\n".to_owned(),
            };
            if stream.write_all(answer.as_bytes()).await.is_err() {
                return;
            }
        }
    }
}

#[tokio::test]
async fn primary_without_the_word_of_its_replicas_may_have_been_replaced() {
    let sentinel = Sentinel::start("10.0.0.1").await;
    let topology = Topology::sentinel("main", [format!("redis://{}", sentinel.addr)]);
    let background = BackgroundRuntime::On(tokio::runtime::Handle::current());
    let router = Router::new(&topology, &Options::default(), &background).expect("valid");
    let old = router.owner(0).await.expect("the Sentinel names it");
    assert_eq!(old.address(), "10.0.0.1:6379");
    *sentinel.shared.host.lock() = "10.0.0.2";
    let unreplicated = Fault::Unreplicated { asked: 1, acknowledged: 0 };
    let began = Instant::now();
    while router.owner(0).await.expect("it is known").address() == old.address() {
        assert!(began.elapsed() < BOUND, "nobody asks the Sentinel");
        router.judge(&old, Some(&unreplicated));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(router.owner(0).await.expect("it is known").address(), "10.0.0.2:6379");

    // Many grants that fail ask no more often than one.
    let (asked, began) = (sentinel.asked(), Instant::now());
    for _ in 0..100 {
        router.judge(&old, Some(&unreplicated));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let more = sentinel.asked() - asked;
    let most = 1 + began.elapsed().as_millis() / APART;
    assert!((1..=most).contains(&(more as u128)), "{more} questions, and not {most}");
}

#[test]
fn one_master_under_two_urls_is_refused() {
    let error = crate::QuorumManager::builder(["redis://a.example", "redis://:pw@A.example:6379", "redis://b.example"])
        .build()
        .expect_err("the first two are one server");
    assert!(matches!(&error, crate::Error::InvalidOption { option: "masters", .. }), "{error:?}");
    assert!(!error.to_string().contains("pw"), "{error}");
}
