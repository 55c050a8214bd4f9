//! Faults of a wrong server with cached holds, after the operation of a right one.

use super::*;

impl Server {
    pub fn keep_wrongly(&self, before: &Record, record: &mut Record, request: &Request, reply: &mut Reply) {
        let was_recallable = before.recallable.is_some_and(|mark| mark.token == before.token);
        let marked_at = |token| move |mark: RecallableFlag| RecallableFlag { token, ..mark };
        match (self.fault, &mut *reply) {
            (Some(Fault::FlagOutlives), _) if was_recallable => {
                record.recallable = record.recallable.map(marked_at(record.token))
            }
            (Some(Fault::FlagTooLate), _) if record.token > before.token => {
                record.recallable = record.recallable.map(marked_at(before.token));
            }
            (Some(Fault::ConversionClearsFlag), Reply::Granted(_)) if matches!(request.what, What::Convert { .. }) => {
                record.recallable = None;
            }
            (Some(Fault::TriesAreRefused), Reply::Queued { .. })
                if record.pending_recall.as_ref().is_some_and(|call| call.id.is_some()) =>
            {
                record.pending_recall = None;
                record.waiting_writers.clone_from(&before.waiting_writers);
                record.waiting_readers.clone_from(&before.waiting_readers);
                *reply = Reply::Contended;
            }
            (Some(Fault::RenewalTellsNothing), Reply::Renewed { is_waited_for, .. }) => *is_waited_for = false,
            (Some(Fault::RenewalBringsOldTokens), Reply::Renewed { tokens: Some((first, _)), .. }) => {
                *first -= 1;
            }
            (Some(Fault::RenewedTokensAhead), Reply::Renewed { tokens: Some((_, count)), .. }) => {
                *count += 1;
                record.token += 1;
                record.recallable = record.recallable.map(marked_at(record.token));
            }
            _ => {}
        }
    }

    pub fn call_wrongly(&self, call: Option<ServerRecall>, request: &Request, before: &Shelf) -> Option<ServerRecall> {
        let waited = before.knows(request.id);
        let asks = matches!(request.what, What::Acquire { .. });
        call.and_then(|call| match self.fault {
            Some(Fault::NobodyRecalls) => None,
            Some(Fault::ForceRecallsNobody) if matches!(request.what, What::Force { .. }) => None,
            Some(Fault::ConversionRecallsNobody) if matches!(request.what, What::Convert { .. }) => None,
            Some(Fault::RecallsOnce) if asks && waited => None,
            Some(Fault::RecallsByOlderToken) => Some(ServerRecall { token: call.token - 1, ..call }),
            Some(Fault::TriesRecallUnnamed) => Some(ServerRecall { tries: None, ..call }),
            _ => Some(call),
        })
    }
}
