//! What a wrong server does where holds may stay, after what a right one does.

use super::{Block, Call, Fault, Mark, Record, Reply, Request, Server, Shelf, What};

impl Server {
    pub(super) fn keep_wrongly(&self, before: &Record, record: &mut Record, request: &Request, reply: &mut Reply) {
        let was_marked = before.mark.is_some_and(|mark| mark.token == before.token);
        let marked_at = |token| move |mark: Mark| Mark { token, ..mark };
        match (self.fault, &mut *reply) {
            (Some(Fault::MarkOutlives), _) if was_marked => record.mark = record.mark.map(marked_at(record.token)),
            (Some(Fault::MarkTooLate), _) if record.token > before.token => {
                record.mark = record.mark.map(marked_at(before.token));
            }
            (Some(Fault::ConversionUnmarks), Reply::Granted(_)) if matches!(request.what, What::Convert { .. }) => {
                record.mark = None;
            }
            (Some(Fault::TriesAreRefused), Reply::Queued)
                if record.call_back.as_ref().is_some_and(|call| call.id.is_some()) =>
            {
                record.call_back = None;
                record.waiting_writers.clone_from(&before.waiting_writers);
                record.waiting_readers.clone_from(&before.waiting_readers);
                *reply = Reply::Contended;
            }
            (Some(Fault::RenewalTellsNothing), Reply::Renewed { is_waited_for, .. }) => *is_waited_for = false,
            (Some(Fault::RenewalBringsOldTokens), Reply::Renewed { tokens: Some(Block { first, .. }), .. }) => {
                *first -= 1;
            }
            (Some(Fault::RenewedTokensAhead), Reply::Renewed { tokens: Some(Block { count, .. }), .. }) => {
                *count += 1;
                record.token += 1;
                record.mark = record.mark.map(marked_at(record.token));
            }
            _ => {}
        }
    }

    pub(super) fn call_wrongly(&self, call: Option<Call>, request: &Request, before: &Shelf) -> Option<Call> {
        let waited = before.knows(request.id);
        let asks = matches!(request.what, What::Acquire { .. });
        call.and_then(|call| match self.fault {
            Some(Fault::NobodyCalls) => None,
            Some(Fault::ForceCallsNobody) if matches!(request.what, What::Force { .. }) => None,
            Some(Fault::ConversionCallsNobody) if matches!(request.what, What::Convert { .. }) => None,
            Some(Fault::CallsOnce) if asks && waited => None,
            Some(Fault::CallsByOlderToken) => Some(Call { token: call.token - 1, ..call }),
            Some(Fault::TriesCallUnnamed) => Some(Call { tries: None, ..call }),
            _ => Some(call),
        })
    }
}
