//! Link to one master of a quorum. A master reports its uptime to each new connection, and has no queue.

use super::*;

/// Connection to a master, and what the process knows of the master.
#[derive(Default)]
pub struct Master {
    wire: Option<Wire>,
    up_since: Option<Moment>,
    pub contact: ServerContact,
}

impl Link {
    /// Returns the way of the next request.
    pub fn wire(&self) -> Wire {
        let connected = self.master.as_ref().and_then(|master| master.lock().wire);
        connected.unwrap_or_else(|| self.world.wire(self.address.process, self.place))
    }

    /// Connects to a master. Any other server needs no connection of its own.
    pub async fn connect(&self, key: &Arc<Key>) -> Result<(), Failure> {
        match &self.master {
            Some(master) if master.lock().wire.is_none() => self.ask_time(key).await,
            _ => Ok(()),
        }
    }

    /// Connects to a silent master anew.
    pub async fn reconnect(&self) -> Result<(), Failure> {
        let is_silent = self.master.as_ref().is_some_and(|master| master.lock().contact.is_silent);
        if !is_silent {
            return Ok(());
        }
        self.ask_time(&Arc::new(Key::new("rwlock", "-").expect("a name"))).await
    }

    pub fn on_answer(&self, wire: Wire, sent: Moment, parcel: &Parcel, answer: &Answer) {
        let Some(master) = &self.master else { return };
        let mut master = master.lock();
        master.contact.served = Some(self.world.clock.now());
        if let Answer::Time { up } = answer {
            // Servers report whole seconds.
            let up_ns = up.as_secs() * 1_000_000_000;
            let up_since = Moment::from_nanos(sent.as_nanos().saturating_sub(up_ns));
            (master.wire, master.contact.is_silent) = (Some(wire), false);
            master.up_since = master.up_since.max(Some(up_since));
        }
        match (parcel, answer) {
            (Parcel::Acquire { request, .. }, Answer::Acquired(Acquired::Granted(_))) => {
                self.world.wrong(|wrong| wrong.granted.insert((self.place, request.id.clone())));
            }
            (Parcel::Conversion { old, request, .. }, Answer::Converted(Converted::Granted(_))) => {
                self.world.wrong(|wrong| {
                    wrong.granted.insert((self.place, request.id.clone()));
                    wrong.converted.insert((self.place, old.clone()));
                });
            }
            _ => {}
        }
    }

    /// Notes that the connection is silent or closed.
    pub fn on_silence(&self) {
        if let Some(master) = &self.master {
            let mut master = master.lock();
            (master.wire, master.contact.is_silent) = (None, true);
        }
    }

    /// Returns the answer that a wrong process invents in place of a request.
    pub fn invented(&self, parcel: &Parcel) -> Option<Answer> {
        let at = |id: &AcquisitionId| (self.place, id.clone());
        let granted = |token, lease| Granted { token, tokens: 1, remaining: lease, is_waited_for: false };
        match (self.world.mutant?, parcel) {
            (Mutant::TokenNotRaised, Parcel::Acquire { request, floor: Some(Floor::Any(token)), .. }) => {
                Some(Answer::Acquired(Acquired::Granted(granted(*token, request.lease))))
            }
            (Mutant::ReleasesWhereGranted, Parcel::Leave { id, .. }) => {
                let is_granted = self.world.wrong(|wrong| wrong.granted.contains(&at(id)));
                (!is_granted).then(|| Answer::ReleaseReply(ReleaseReply::None(Absence::default())))
            }
            (Mutant::NotUndone, Parcel::Conversion { request, .. }) if request.mode == Mode::Read => {
                let is_converted = self.world.wrong(|wrong| wrong.converted.contains(&at(&request.id)));
                is_converted.then(|| Answer::Converted(Converted::Granted(granted(FencingToken::ZERO, request.lease))))
            }
            _ => None,
        }
    }

    /// Returns true if a wrong process takes the renewal by another master for this one, too.
    pub fn is_renewed_by_any(&self, id: &AcquisitionId, answer: &Attempt<Answer>) -> bool {
        if !self.is_mutant(Mutant::MinorityRenews) {
            return false;
        }
        let now = self.world.clock.now();
        self.world.wrong(|wrong| match answer {
            Ok(answer) if matches!(answer.value, Answer::Renewed(Renewed::Renewed { .. })) => {
                wrong.renewed.insert(id.clone(), now);
                false
            }
            _ => wrong.renewed.get(id).is_some_and(|renewed| now.since(*renewed) < 2 * self.response_timeout),
        })
    }
}

impl MasterScheme for Link {
    fn acquire_above<'a>(
        &'a self,
        key: &'a Key,
        request: &'a AcquireRequest,
        floor: Floor,
    ) -> BoxFuture<'a, Attempt<Acquired>> {
        Box::pin(self.acquire_at(key, request, Some(floor)))
    }

    fn force_shown<'a>(
        &'a self,
        key: &'a Key,
        token: Option<FencingToken>,
        seen: &'a View,
    ) -> BoxFuture<'a, Attempt<Forced>> {
        let mut seen = seen.clone();
        match self.world.mutant {
            Some(Mutant::ForceNamesTokens) => seen.holders.clear(),
            Some(Mutant::ForceForgotten) => seen.token = None,
            _ => {}
        }
        Box::pin(self.force_at(key, Parcel::ForceShown { token, seen }))
    }

    fn clock_sample(&self) -> Option<ClockSample> {
        *self.clock_sample.lock()
    }

    fn up_since(&self) -> Option<Moment> {
        self.master.as_ref()?.lock().up_since
    }
}
