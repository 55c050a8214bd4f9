//! A single master of a quorum, and the probe of a silent master. A silent master gets no requests of callers. The
//! releases that the background repeats wait there for the end of the silence.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::base::attempt::Attempt;
use crate::base::background_runtime::BackgroundRuntime;
use crate::base::key::Key;
use crate::base::lease::{Moment, ServerTime};
use crate::base::single_task::SingleTask;
use crate::store::{MasterScheme, ReleaseReply, ReleaseRequest, Route};

/// Longest age of a usable clock sample. In this time, the clocks of two servers drift apart by at most 1 % of it.
const MAX_CLOCK_SAMPLE_AGE: Duration = Duration::from_secs(5);

pub(super) struct Master {
    pub(super) scheme: Arc<dyn MasterScheme>,
    /// Route of the releases at this master.
    pub(super) route: Route,
    /// Counts its clones, one for each release at this master that the background has to repeat.
    pub(super) pending_releases: Arc<()>,
    background_runtime: BackgroundRuntime,
    /// Any key. The node of the master serves all keys.
    any: Key,
    probe: SingleTask,
}

impl fmt::Debug for Master {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.scheme.fmt(f)
    }
}

impl Master {
    pub(super) fn new(
        scheme: Arc<dyn MasterScheme>,
        place: usize,
        background_runtime: BackgroundRuntime,
        any: Key,
    ) -> Self {
        let route = Route(format!("master {place}").into());
        Self { scheme, route, pending_releases: Arc::default(), background_runtime, any, probe: SingleTask::default() }
    }

    /// Returns true if the master does not answer, so that a request to it would be in vain. Then starts a probe,
    /// unless there is one.
    pub(super) fn is_silent(&self) -> bool {
        let is_silent = self.scheme.contact(&self.any).is_silent;
        if is_silent && let Some(probe) = self.probe.begin() {
            let scheme = Arc::clone(&self.scheme);
            self.background_runtime.spawn(async move {
                drop(scheme.ready().await);
                // If the runtime ends before, the drop of this task permits the next probe too.
                drop(probe);
            });
        }
        is_silent
    }

    /// Releases holds at this master in one pipeline.
    pub(super) async fn release_all(&self, batch: &[ReleaseRequest]) -> Vec<Attempt<ReleaseReply>> {
        self.scheme.release_all(&self.scheme.route(&self.any), batch).await
    }

    /// Returns the time that the master's clock shows now, if a fresh sample is known.
    pub(super) fn time_at(&self, now: Moment) -> Option<ServerTime> {
        let clock_sample = self.scheme.clock_sample()?;
        (clock_sample.age_at(now) <= MAX_CLOCK_SAMPLE_AGE).then(|| clock_sample.server_time_at(now))
    }
}

#[cfg(all(test, feature = "_testing"))]
#[path = "../../../testing/unit/store/quorum/master/tests.rs"]
mod tests;
