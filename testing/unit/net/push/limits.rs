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

/// Starts a server that confirms commands about channels, and sends more behind each confirmation of a subscription.
async fn server_that_says_more(more: fn(&str) -> String) -> (SocketAddr, Arc<Asked>) {
    let asked = Arc::<Asked>::default();
    let counts = Arc::clone(&asked);
    let answer = move |connection: usize, words: &[String]| {
        counts.connections.fetch_max(connection + 1, Ordering::SeqCst);
        counts.commands.fetch_add(usize::from(words[0].ends_with("SUBSCRIBE")), Ordering::SeqCst);
        match words[0].as_str() {
            "HELLO" => fake::hello("standalone"),
            "SSUBSCRIBE" => fake::push_of("ssubscribe", &words[1]) + &more(&words[1]),
            "SUNSUBSCRIBE" => fake::push_of("sunsubscribe", &words[1]),
            _ => "+OK\r\n".to_owned(),
        }
    };
    (fake::answering(answer).await, asked)
}

/// Each would be a stored name, and a request that ends it.
#[tokio::test]
async fn confirmations_that_nobody_asked_for_cause_no_request_and_leave_nothing() {
    let others = |_: &str| (0..10_000).map(|number| fake::push_of("ssubscribe", &format!("other-{number}"))).collect();
    let (server, asked) = server_that_says_more(others).await;
    let (push, _node) = single(server, pace());
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
    let (server, asked) = server_that_says_more(|channel| fake::push_of("sunsubscribe", channel)).await;
    let (push, _node) = single(server, pace());
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
    let (server, asked) = server_that_says_more(|_| String::new()).await;
    let (push, _node) = single(server, pace());
    let subscription = confirmed(&push, "a").await.subscription;
    assert_eq!(asked.commands.load(Ordering::SeqCst), 1);
    let shared = shared(&push);
    let from = origin(&shared);
    for _ in 0..MAX_NOTIFICATIONS * 10 {
        shared.take(from, Pushed::Message { channel: "a", message: b"flood" });
    }
    assert_eq!(subscription.notices.len(), MAX_NOTIFICATIONS);
}
