use super::*;

const REFUSALS: [Refusal; 10] = [
    Refusal::OutOfMemory,
    Refusal::Unauthenticated,
    Refusal::Forbidden,
    Refusal::ReadOnly,
    Refusal::ForeignKey,
    Refusal::UnsupportedServer,
    Refusal::Untrusted,
    Refusal::OtherTopology,
    Refusal::OtherVersion,
    Refusal::Other,
];
const REASONS: [LossReason; 6] = [
    LossReason::Expired,
    LossReason::Gone,
    LossReason::MaxHold,
    LossReason::Forced,
    LossReason::Closed,
    LossReason::Forked,
];

/// Returns a cause at the node of these errors.
fn at_node(cause: Source) -> Source {
    Arc::new(AtNode { node: "10.0.0.1:6379".into(), cause: Some(cause) })
}

fn failed(kind: io::ErrorKind) -> Option<Source> {
    Some(at_node(Arc::new(io::Error::new(kind, "the cause"))))
}

/// Returns one error of each kind, for a lock and for a manager, with and without a node.
fn all() -> Vec<Error> {
    let (lock, nobody): (Arc<str>, Arc<str>) = ("cfg".into(), "".into());
    let waited = Duration::from_micros(5_016_789);
    let lock = || Arc::clone(&lock);
    let mut all = vec![
        Error::WaitTimeout { lock: lock(), waited, confirmed: true, denied: Box::default() },
        Error::WaitTimeout { lock: lock(), waited, confirmed: false, denied: Box::default() },
        Error::UpgradeConflict { lock: lock() },
        Error::Closed { lock: lock() },
        Error::Forked { lock: lock(), process: 4711 },
        Error::Forked { lock: Arc::clone(&nobody), process: 4711 },
        Error::InvalidName { lock: lock(), reason: "it is empty".to_owned() },
        Error::InvalidOption { option: "lease", reason: "make it longer".to_owned() },
        Error::unreachable(lock(), waited, None),
        Error::unreachable(Arc::clone(&nobody), waited, None),
    ];
    for kind in [io::ErrorKind::ConnectionRefused, io::ErrorKind::UnexpectedEof] {
        all.push(Error::unreachable(lock(), waited, failed(kind)));
    }
    let no_tls = NoTls(Arc::new(io::Error::new(io::ErrorKind::InvalidData, "the cause")));
    all.push(Error::unreachable(lock(), waited, Some(at_node(Arc::new(no_tls)))));
    all.push(Error::unreachable(nobody, waited, failed(io::ErrorKind::TimedOut)));
    let too_many_files = io::Error::from_raw_os_error(if cfg!(windows) { 10024 } else { 24 });
    for cause in [too_many_files, io::Error::other("ERR max number of clients reached")] {
        all.push(Error::unreachable(lock(), waited, Some(at_node(Arc::new(cause)))));
    }
    all.extend(REASONS.map(|reason| Error::Lost { lock: lock(), reason }));
    let message = || "the server's words".to_owned();
    all.extend(REFUSALS.map(|refusal| Error::Refused {
        lock: lock(),
        refusal,
        node: Some("10.0.0.1:6379".into()),
        message: message(),
    }));
    let node: Option<Arc<str>> = Some("10.0.0.1:6379".into());
    all.push(Error::NotEnoughReplicas { lock: lock(), asked: 2, acknowledged: 1, node: node.clone() });
    all.push(Error::NotEnoughReplicas { lock: "".into(), asked: 1, acknowledged: 0, node });
    for restarted in [0, 2, 5] {
        let no_majority = NoMajority { masters: 5, needed: 3, restarted, causes: Vec::new() };
        all.push(Error::unreachable(lock(), waited, Some(Arc::new(no_majority))));
    }
    all.push(Error::TooManyWaiters { lock: lock(), waiting: 100_000, max_waiters: 100_000 });
    all.push(Error::Refused { lock: "".into(), refusal: Refusal::Forbidden, node: None, message: message() });
    all
}

#[test]
fn messages_are_as_they_were_agreed() {
    let shown: Vec<String> = all().iter().map(ToString::to_string).collect();
    let agreed: Vec<&str> = include_str!("messages.txt").lines().collect();
    for (shown, agreed) in shown.iter().zip(&agreed) {
        assert_eq!(shown, agreed);
    }
    assert_eq!(shown.len(), agreed.len(), "the rest: {:#?}", shown.get(agreed.len()..));
}

#[test]
fn causes_are_told_once_and_can_be_downcast() {
    for error in all() {
        let below: Vec<_> = std::iter::successors(std::error::Error::source(&error), |error| error.source()).collect();
        for cause in &below {
            assert!(!error.to_string().contains(&cause.to_string()), "{error}");
        }
        let is_known = |root: &&(dyn std::error::Error + 'static)| root.is::<io::Error>() || root.is::<NoMajority>();
        assert!(below.last().is_none_or(is_known) && below.len() <= 2, "{error}: {below:?}");
    }
}

#[test]
fn messages_of_managers_name_no_lock() {
    let of_managers = all().into_iter().filter(
        |error| matches!(error, Error::Unreachable { lock, .. } | Error::Refused { lock, .. } if lock.is_empty()),
    );
    let mut count = 0;
    for error in of_managers {
        assert!(!error.to_string().contains("lock"), "{error}");
        count += 1;
    }
    assert_eq!(count, 3);
}
