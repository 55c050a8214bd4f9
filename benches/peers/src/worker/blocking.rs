//! Load of a worker with plain threads.

use redis_rwlock::blocking::RedisManager;

use super::*;

pub(super) fn carry(manager: &RedisManager, load: &Load) -> Vec<Latencies> {
    let (shape, until) = (load.shape, Instant::now() + load.span());
    thread::scope(|scope| {
        let start = |task: usize| {
            let name = if shape == Shape::Own { format!("own {task}") } else { "hot".to_owned() };
            let repeat = move || {
                let took = std::iter::from_fn(|| once(manager, shape, mode(load.writes), &name, until));
                took.map(nanos).collect::<Vec<_>>()
            };
            // A small stack, because a thousand threads have to fit into the memory.
            thread::Builder::new().stack_size(256 << 10).spawn_scoped(scope, repeat).expect("a thread")
        };
        let running: Vec<_> = (0..load.tasks).map(start).collect();
        running.into_iter().map(|thread| thread.join().expect("it runs")).collect()
    })
}

fn once(manager: &RedisManager, shape: Shape, mode: Mode, name: &str, until: Instant) -> Option<Duration> {
    let asked = Instant::now();
    let left = until.checked_duration_since(asked)? + GRACE;
    let entered = match mode {
        Mode::Read => {
            let guard = manager.read(name).wait_timeout(left).wait().ok()?;
            let entered = asked.elapsed();
            guard.release().expect("released");
            entered
        }
        Mode::Write => {
            let guard = manager.write(name).wait_timeout(left).wait().ok()?;
            let entered = asked.elapsed();
            guard.release().expect("released");
            entered
        }
    };
    Some(if shape == Shape::Own { asked.elapsed() } else { entered })
}
