//! Servers that push without end: what this process stores of it, and which requests it sends.

use super::*;
use crate::base::attempt::MAX_NOTIFICATIONS;

/// Counts of what a server of a test is asked.
#[derive(Default)]
struct Asked {
    connections: AtomicUsize,
    /// Commands about channels.
    commands: AtomicUsize,
}

fn push_of(kind: &str, channel: &str) -> String {
    format!(">3\r\n${}\r\n{kind}\r\n${}\r\n{channel}\r\n:1\r\n", kind.len(), channel.len())
}

/// Confirms commands about channels, and sends more behind each confirmation of a subscription.
async fn says_more(listener: TcpListener, more: fn(&str) -> String, asked: Arc<Asked>) {
    while let Ok((mut stream, _)) = listener.accept().await {
        asked.connections.fetch_add(1, Ordering::SeqCst);
        let asked = Arc::clone(&asked);
        tokio::spawn(async move {
            let (mut said, mut done) = (Vec::new(), 0);
            while stream.read_buf(&mut said).await.is_ok_and(|count| count > 0) {
                while let Some((words, end)) = fake::command(&said, done) {
                    done = end;
                    let is_about_a_channel = words[0].ends_with("SUBSCRIBE");
                    asked.commands.fetch_add(usize::from(is_about_a_channel), Ordering::SeqCst);
                    let answer = match words[0].as_str() {
                        "HELLO" => fake::hello("standalone"),
                        "SSUBSCRIBE" => push_of("ssubscribe", &words[1]) + &more(&words[1]),
                        "SUNSUBSCRIBE" => push_of("sunsubscribe", &words[1]),
                        _ => "+OK\r\n".to_owned(),
                    };
                    if stream.write_all(answer.as_bytes()).await.is_err() {
                        return;
                    }
                }
            }
        });
    }
}

async fn server_that_says_more(more: fn(&str) -> String) -> (String, Arc<Asked>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let (url, asked) = (format!("redis://{}", listener.local_addr().expect("bound")), Arc::<Asked>::default());
    tokio::spawn(says_more(listener, more, Arc::clone(&asked)));
    (url, asked)
}

/// Each would be a stored name, and a request that ends it.
#[tokio::test]
async fn confirmations_that_nobody_asked_for_cause_no_request_and_leave_nothing() {
    let others = |_: &str| (0..10_000).map(|number| push_of("ssubscribe", &format!("other-{number}"))).collect();
    let (url, asked) = server_that_says_more(others).await;
    let (push, _node) = single(&url);
    let _subscription = push.subscribe(0, "a", read);
    until("the connection is replaced twice", || asked.connections.load(Ordering::SeqCst) >= 3).await;
    let (commands, connections) = (asked.commands.load(Ordering::SeqCst), asked.connections.load(Ordering::SeqCst));
    assert!(commands <= connections, "{commands} commands on {connections} connections");
    let shared = shared(&push);
    let subscriptions = shared.subscriptions.lock();
    let remaining: usize = subscriptions.links.values().map(|link| link.leftovers.len() + link.todo.len()).sum();
    assert!(remaining <= 1, "{remaining} names are kept");
}

#[tokio::test]
async fn channel_that_its_server_ends_again_and_again_is_subscribed_at_a_bounded_pace() {
    let (url, asked) = server_that_says_more(|channel| push_of("sunsubscribe", channel)).await;
    let (push, _node) = single(&url);
    let began = Instant::now();
    let _subscription = push.subscribe(0, "a", read);
    until("it was subscribed again", || asked.commands.load(Ordering::SeqCst) > 16).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let (commands, took) = (asked.commands.load(Ordering::SeqCst), began.elapsed());
    // Sixteen at once, and one each 5 ms.
    let most = 16 + usize::try_from(took.as_millis()).expect("soon") / 5 + 2;
    assert!(commands <= most, "{commands} commands within {took:?}");
    assert!(commands > 30, "it goes on: {commands} commands within {took:?}");
}

#[tokio::test]
async fn messages_that_nobody_reads_are_kept_up_to_a_bound() {
    let (url, asked) = server_that_says_more(|_| String::new()).await;
    let (push, _node) = single(&url);
    let mut subscription = push.subscribe(0, "a", read);
    told_to_ask(&mut subscription).await;
    assert_eq!(asked.commands.load(Ordering::SeqCst), 1);
    let shared = shared(&push);
    let from = {
        let subscriptions = shared.subscriptions.lock();
        let (number, link) = subscriptions.links.iter().next().expect("a link");
        Origin { link: *number, connection: link.connection }
    };
    for _ in 0..MAX_NOTIFICATIONS * 10 {
        shared.take(from, Pushed::Message { channel: "a", message: b"flood" });
    }
    assert_eq!(subscription.notices.len(), MAX_NOTIFICATIONS);
}
