use std::pin::pin;
use std::task::{Context, Poll, Wake, Waker};

use super::*;

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("as the test wants it");
    }
}

#[test]
fn waker_that_panics_keeps_back_no_other_effect() {
    let (first, second) = (Arc::<End>::default(), Arc::<End>::default());
    let (mut waits, mut other) = (pin!(first.changed.notified()), pin!(second.changed.notified()));
    assert!(waits.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::new(Panics)))).is_pending());
    assert!(other.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let rules = Rules {
        clock: Clock::System,
        process: Process::current(),
        max_clock_skew: Duration::ZERO,
        max_delay: Duration::ZERO,
        poll_within: Duration::ZERO,
        try_within: Duration::ZERO,
        max_handoffs: 1,
        handoff_span: Duration::ZERO,
        metrics: Metrics::default(),
        cached: Arc::default(),
    };
    let mut event = CellEvent::<()>::new(Moment::START, &rules, &Reception::NONE);
    event.add_change(Arc::clone(&first));
    event.add_change(Arc::clone(&second));
    event.due(&Arc::new(()));
    let mut scheduled = 0;
    let woken = Woken::of(Waker::from(Arc::new(Panics)));
    event.carry_out(&Key::new("rwlock", "cfg").expect("valid"), woken, |due| scheduled = due.len());
    assert_eq!(scheduled, 1);
    assert_eq!(other.poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(()));
}
