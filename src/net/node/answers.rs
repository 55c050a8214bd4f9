//! Answers of a node: the wait for an answer, and what it says of the connection, of the node and of its clock.

use std::pin::{Pin, pin};
use std::time::Duration;

use redis::{Cmd, RedisError, Value};

use super::connection::{Request, Wording};
use super::connections::{Connections, OpenConnection};
use super::greeting::{parse_time, unreadable};
use super::{CallAnswer, Role};
use crate::base::attempt::Answered;
use crate::base::error::Refusal;
use crate::base::lease::{ClockSample, Moment, ServerTime};
use crate::net::CLOCK;
use crate::net::fault::{self, Answer, Fault};
use crate::net::{Call, is_reply_to, is_unpublished, server_time};

/// Limit for the age of a clock sample. After this time, two clocks whose rates differ by 1 % have drifted apart by 50
/// ms. That is half of the default `max_clock_skew`.
const MAX_CLOCK_SAMPLE_AGE: Duration = Duration::from_secs(5);
/// Least age of a connection whose login can have ended. On a younger connection, a server that requires a login has
/// another reason, and a new connection would not help.
const MIN_LOGIN: Duration = Duration::from_secs(1);

impl Connections {
    /// Waits for the reply to a request that was sent at `sent`, for at most one response timeout.
    ///
    /// If no reply comes in that time, checks whether another reply came on this connection in the second half of that
    /// time. If none came, gives the connection up. A late reply reaches no caller, because the connection assigns each
    /// reply to its own request.
    pub(super) async fn in_time<T>(
        &self,
        live: &OpenConnection,
        sent: Moment,
        reply: Pin<&mut impl Future<Output = Result<T, RedisError>>>,
    ) -> Result<T, Fault> {
        let response_timeout = self.limits.response_timeout;
        let outcome = tokio::time::timeout(response_timeout, reply).await;
        let now = CLOCK.now();
        let arrives_until = self.limits.arrives_until(sent);
        match outcome {
            // If the runtime stood still, a late reply is seen before the timer fires. So the clock decides whether the
            // reply came in time.
            Ok(Ok(value)) => {
                live.has_answered(now);
                live.space.is_back(sent, now);
                self.outage.ends(now);
                if now.since(sent) <= response_timeout { Ok(value) } else { Err(self.unanswered_fault(arrives_until)) }
            }
            Ok(Err(error)) => {
                let fault = Fault::of_request(error, arrives_until);
                if matches!(fault, Fault::Unknown { .. }) {
                    self.give_up(live);
                }
                Err(fault)
            }
            Err(_) => {
                let fault = self.unanswered_fault(arrives_until);
                live.space.is_back(sent, now);
                // An answer that came in the first half of the wait does not prove that the connection still works.
                let of_late = sent.after(response_timeout / 2);
                if !live.has_answered_since(of_late) {
                    self.give_up(live);
                    // If this process stood still, a missing answer says nothing about the node. A missing answer on a
                    // dedicated connection says nothing either, because its calls may take long.
                    if !live.is_apart
                        && now.since(sent) < response_timeout * 2
                        && let Fault::Unknown { source, .. } = &fault
                        && !self.has_answered_elsewhere(live, of_late)
                    {
                        self.outage.begins(source.clone(), sent, now);
                    }
                }
                Err(fault)
            }
        }
    }

    /// Sends one question. Returns its answer, with the time at which the question was sent.
    pub(super) async fn ask(&self, live: &OpenConnection, question: &Cmd) -> Result<(Moment, Value), Fault> {
        let sent = CLOCK.now();
        let reply = pin!(live.connection.ask(Request::Command(question)));
        let answer = fault::reply(self.in_time(live, sent, reply).await?);
        Ok((sent, answer.map_err(|fault| self.without_login(live, sent, fault))?))
    }

    fn unanswered_fault(&self, arrives_until: Moment) -> Fault {
        Fault::unknown(arrives_until, format!("no answer within {:?}", self.limits.response_timeout))
    }

    pub(super) fn on_answer(
        &self,
        live: &OpenConnection,
        call: &Call,
        wording: Wording,
        sent: Moment,
        value: Value,
    ) -> CallAnswer {
        let value = fault::reply(value).map_err(|fault| {
            let is_proxied = self.limits.role == Role::Proxy;
            let fault = if is_proxied { fault.through_proxy(self.limits.arrives_until(sent)) } else { fault };
            let fault = self.on_script_fault(fault, call.script, wording);
            self.note_refusal(&fault);
            if fault.is_of_no_primary() && !is_proxied {
                self.leave(live);
            }
            self.without_login(live, sent, fault)
        })?;
        if !is_reply_to(&value, call.echo()) {
            // The connection assigns replies to the wrong requests, so it is given up. The server may still execute
            // this request.
            self.give_up(live);
            let reason = "the reply is not one to this request";
            return Err(Fault::unknown(self.limits.arrives_until(sent), reason));
        }
        if is_unpublished(&value) {
            self.conditions.note_unpublished(&self.address);
        }
        self.has_served(live);
        let server = server_time(&value).unwrap_or_default();
        if server != ServerTime::default() {
            *live.clock_sample.lock() = ClockSample { sent, server };
            self.note_time_if_due(server, sent);
        }
        Ok(Answered { sent, server, node: self.id, value })
    }

    /// Gives up a connection whose login has ended, if a provider can return other credentials. The next connection asks
    /// the provider, so the call can be sent again.
    pub(super) fn without_login(&self, live: &OpenConnection, sent: Moment, fault: Fault) -> Fault {
        match fault {
            Fault::Refused { refusal: Refusal::Unauthenticated, message }
                if self.secrets.has_provider() && sent.since(live.opened) >= MIN_LOGIN =>
            {
                self.give_up(live);
                Fault::Again(Answer::error(message))
            }
            fault => fault,
        }
    }

    /// Returns the present moment. Also returns the server time after which the server must refuse a call that is sent
    /// now.
    pub(super) async fn not_after(&self, live: &OpenConnection) -> Result<(Moment, ServerTime), Fault> {
        let mut now = CLOCK.now();
        let mut clock_sample = *live.clock_sample.lock();
        if clock_sample.age_at(now) > MAX_CLOCK_SAMPLE_AGE {
            clock_sample = Box::pin(self.time_of(live)).await?;
            *live.clock_sample.lock() = clock_sample;
            now = CLOCK.now();
        }
        Ok((now, clock_sample.server_time_at(now).after(self.limits.response_timeout)))
    }

    async fn time_of(&self, live: &OpenConnection) -> Result<ClockSample, Fault> {
        let (sent, value) = self.ask(live, &redis::cmd("TIME")).await?;
        let server = parse_time(&value).ok_or_else(|| unreadable("TIME"))?;
        Ok(ClockSample { sent, server })
    }
}
