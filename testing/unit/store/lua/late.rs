//! Requests with a time limit of the test's choice, as if they had been sent at another time.

use super::*;

impl LuaScheme {
    /// Acquires with a time limit that the caller chooses. The request is like a copy that was sent at another time.
    pub(crate) async fn acquire_until(
        &self,
        key: &Key,
        request: &AcquireRequest,
        not_after_ms: u64,
    ) -> Attempt<Acquired> {
        let mut call = self.call(&self.scripts.acquire, key);
        call.number(not_after_ms);
        self.acquire_args(&mut call, request);
        read_reply(self.router.call(call, CallRoute::Shared).await?, request.id.as_str(), parse_acquired)
    }

    /// Converts with a time limit that the caller chooses.
    pub(crate) async fn convert_until(
        &self,
        key: &Key,
        old: &AcquisitionId,
        request: &AcquireRequest,
        not_after_ms: u64,
    ) -> Attempt<Converted> {
        let mut call = self.call(&self.scripts.convert, key);
        call.number(not_after_ms);
        self.convert_args(&mut call, old, request);
        read_reply(self.router.call(call, CallRoute::Shared).await?, request.id.as_str(), parse_converted)
    }
}
