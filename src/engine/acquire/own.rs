//! An acquisition goes on with a hold that stays in its process and is not what it needs: of the other side, or without a token for
//! it. One script makes it that.

use std::sync::Arc;

use crate::base::error::{Error, Result};
use crate::engine::Held;
use crate::engine::convert::{self, NotConverted};
use crate::lock::hold::{CacheAnswer, Grant};
use crate::store::{Attempt, Failure, RenewalRequest, Renewed, loss_reason};

use super::{Acquisition, Patience};

/// What came of asking for more tokens.
pub(super) enum Refilled {
    /// There may be one now.
    Perhaps,
    /// Somebody waits elsewhere, who is before this one.
    WaitedFor,
    /// There are none to be had.
    InVain,
}

impl Acquisition<'_> {
    /// Has an idle hold of the other side turned into one of this side. `None` if there is none, or others are in the way: then it
    /// was given up, and the server is to be asked.
    pub(super) async fn convert_own(&mut self, patience: Patience) -> Result<Option<Held>> {
        self.asks_on().await;
        let (engine, now) = (self.engine, self.engine.clock.now());
        let Some(entry) = &self.entry else {
            return Ok(None);
        };
        let Some((hold, share_id)) = entry.take_to_convert(now) else {
            return Ok(None);
        };
        let underway = self.begin_underway();
        let turned = convert::turn(Held::new(engine, hold, share_id), self.mode, self.wants).await;
        drop(underway);
        match turned {
            // One answer is enough, also for a guard that starts with little.
            Ok(held) if patience == Patience::AskOnce => Ok(Some(self.on_joined(held))),
            Ok(held) => {
                self.on_seated(&held);
                self.accept(held, patience).await
            }
            Err(NotConverted { held, error }) => {
                self.give_up_own(held);
                match error {
                    Error::UpgradeConflict { .. } | Error::Lost { .. } => Ok(None),
                    error => Err(error),
                }
            }
        }
    }

    /// Asks for more tokens, since there is none for this writer.
    pub(super) async fn refill(&mut self, held: &Held) -> Result<Refilled> {
        let (engine, hold) = (self.engine, held.hold());
        let now = engine.clock.now();
        let Some((standing, lease)) = hold.begin_refill(self.wants.from(now), now) else {
            return Ok(Refilled::InVain);
        };
        let renewal = RenewalRequest {
            key: Arc::clone(&self.key),
            id: hold.id().clone(),
            lease,
            caches: true,
            tokens: hold.missing_tokens(),
        };
        let route = engine.scheme.route(&self.key);
        let attempt = engine.scheme.renew(&route, &[renewal]).await.pop();
        let attempt: Attempt<Renewed> = attempt.unwrap_or(Err(Failure::NotDone { source: None }));
        let now = engine.clock.now();
        let answer = match attempt {
            Ok(answer) => answer,
            Err(failure) => {
                self.on_no_answer(failure).await?;
                return Ok(Refilled::Perhaps);
            }
        };
        self.on_first_answer(now);
        match answer.value {
            Renewed::Renewed { remaining, is_waited_for, tokens } => {
                let grant = Grant { sent: answer.sent, remaining, asked: lease, server: answer.server };
                hold.on_renewed(grant, now);
                let word =
                    CacheAnswer { offered_on: Some(standing), sent: answer.sent, node: answer.node, is_waited_for };
                hold.on_cache_answer(word, tokens, now);
                Ok(match (is_waited_for, tokens) {
                    (true, _) => Refilled::WaitedFor,
                    (false, Some(_)) => Refilled::Perhaps,
                    (false, None) => Refilled::InVain,
                })
            }
            Renewed::Lost { forced } => {
                hold.on_unknown(loss_reason(hold.token(), forced));
                Ok(Refilled::InVain)
            }
        }
    }

    /// Nobody here goes on with it.
    pub(super) fn give_up_own(&self, held: Held) {
        held.hold().note_wanted(self.engine.clock.now());
    }
}
