//! The most scripts that wait in front of a server at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use cluster_testenv::Node;

/// Looks at a proxy again and again.
pub(crate) struct Peak {
    most: Arc<AtomicUsize>,
    is_over: Arc<AtomicBool>,
}

impl Peak {
    pub(crate) fn watch(node: &Arc<Node>) -> Self {
        let (most, is_over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let watch = Self { most: Arc::clone(&most), is_over: Arc::clone(&is_over) };
        let node = Arc::clone(node);
        thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                most.fetch_max(node.proxy().scripts_waiting(), Ordering::Relaxed);
                thread::sleep(Duration::from_millis(10));
            }
        });
        watch
    }

    pub(crate) fn end(self) -> usize {
        self.is_over.store(true, Ordering::Relaxed);
        self.most.load(Ordering::Relaxed)
    }
}
