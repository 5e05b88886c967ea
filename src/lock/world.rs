//! The keyspace and the blocked clients of the server, as the hand-over sees them.

use super::edit::{LockKey, OpenKeys, with_open_keys};
use super::handover::{
    Handover, LockWorld, OpenLocks, Upkeep, UpkeepStep, WaitEnd, WaitingClients,
};
use super::notices;
use super::queue::Listener;
use super::state::{Amount, LockKind};
use super::watchdog::{self, release_event};
use super::{BLOCKED, LockService, SERVICE, WAIT_TIMES};
use crate::error::Error;
use crate::reply::Answer;
use crate::server::base::clock::Now;
use crate::server::handles::context::{Ctx, is_connected};
use crate::server::handles::key::TypedKey;
use crate::server::handles::string::ServerString;
use crate::server::services::cluster;
use crate::server::services::publish::publish;
use crate::server::services::replicas;
use crate::server::services::timer;
use crate::waiting::{Key, Ticket};
use std::ffi::CStr;

/// The clients that wait in this server.
pub(super) struct ServerClients;

impl WaitingClients for ServerClients {
    fn answer(&mut self, ticket: Ticket, answer: Answer) {
        BLOCKED.wake(ticket, answer);
    }

    fn publish(&mut self, _ticket: Ticket, listener: &Listener, id: &[u8], end: WaitEnd) {
        let (what, fence) = match end {
            WaitEnd::Granted(fence) => ("granted", fence),
            WaitEnd::TimedOut => ("timeout", 0),
            WaitEnd::Moved => ("moved", 0),
            WaitEnd::Deadlock => ("deadlock", 0),
        };
        let message = notices::message(what, fence, id);
        publish(listener.channel.clone(), message);
    }

    fn wait_ended(&mut self, since_us: u64) {
        WAIT_TIMES.count_between(since_us, Now::read().micros());
    }
}

/// This server at a moment. It borrows [`SERVICE`] for moments in which it opens no keys.
pub(super) struct ServerWorld<'a> {
    pub(super) ctx: Ctx<'a>,
    pub(super) now: Now,
}

impl WaitingClients for ServerWorld<'_> {
    fn answer(&mut self, ticket: Ticket, answer: Answer) {
        ServerClients.answer(ticket, answer);
    }

    fn publish(&mut self, ticket: Ticket, listener: &Listener, id: &[u8], end: WaitEnd) {
        ServerClients.publish(ticket, listener, id, end);
    }

    fn wait_ended(&mut self, since_us: u64) {
        WAIT_TIMES.count_between(since_us, self.now.micros());
    }
}

impl LockWorld for ServerWorld<'_> {
    fn may_grant(&mut self) -> bool {
        replicas::are_enough(self.ctx, self.now)
    }

    fn is_connected(&mut self, client: u64) -> bool {
        is_connected(client)
    }

    fn serves(&mut self, (db, key): &Key) -> bool {
        let ctx = self.ctx;
        if !ctx.is_cluster() {
            return true;
        }
        let serves = ctx.in_db(*db, || cluster::serves(ctx, &ServerString::new(key)));
        serves == Some(true)
    }

    fn is_limited_to_a_slot(&mut self) -> bool {
        self.ctx.is_cluster() // a command may call this
    }

    fn with_handover<T>(
        &mut self,
        run: impl FnOnce(&mut Handover, &mut dyn WaitingClients) -> T,
    ) -> T {
        run(&mut SERVICE.get().handover, &mut ServerClients)
    }

    fn with_locks<T>(
        &mut self,
        keys: &[Key],
        kind: LockKind,
        event: &'static CStr,
        step: impl FnOnce(&mut Handover, &mut dyn OpenLocks) -> T,
    ) -> Result<T, Error> {
        let (ctx, now) = (self.ctx, self.now);
        let Some((db, first)) = keys.first() else {
            return Err(Error::Internal);
        };
        let taken = ctx.in_db(*db, || {
            if keys.len() > 1 {
                let names = keys.iter().map(|(_, key)| ServerString::new(key));
                let names: Vec<ServerString<'_>> = names.collect();
                return with_open_keys(ctx, now, names.iter(), kind, event, |handover, locks| {
                    step(handover, locks)
                });
            }
            let name = ServerString::new(first);
            LockKey::with(ctx, &name, kind, now, event, |key, service| {
                let LockService {
                    handover, steps, ..
                } = service;
                step(handover, &mut OpenKeys::one(key, steps))
            })
        });
        taken.unwrap_or(Err(Error::Internal))
    }

    fn take_back(&mut self, key: &Key, kind: LockKind, owner: &[u8], amount: Amount) {
        let (ctx, now) = (self.ctx, self.now);
        cluster::act_on(ctx, key, |name| {
            // Without a lock of this kind there is nothing to release.
            let _ = LockKey::with(ctx, name, kind, now, release_event(kind), |key, service| {
                key.release(&mut service.steps, owner, amount, None);
            });
        });
    }

    fn wake_at(&mut self, at: u64) {
        timer::arm(self.ctx, at);
    }

    fn demotion_error(&mut self, (_, key): &Key) -> Error {
        cluster::demotion_error(self.ctx, &ServerString::new(key))
    }

    fn upkeep(&mut self, task: &mut Upkeep) -> UpkeepStep {
        match task {
            Upkeep::Unwatch(sweep) => {
                let steps = &mut SERVICE.get().steps;
                let swept = steps.watches.next_swept(sweep);
                if let Some(Some(number)) = swept {
                    steps.unwatch_number(number);
                }
                UpkeepStep {
                    is_unfinished: swept.is_some(),
                    changed: None,
                }
            }
            Upkeep::Reconcile(key) => {
                self.reconcile(key);
                UpkeepStep {
                    is_unfinished: false,
                    changed: Some(key.clone()),
                }
            }
            Upkeep::Abandon(client) => {
                let number = SERVICE.get().steps.watches.first_of(*client);
                UpkeepStep {
                    is_unfinished: number.is_some(),
                    changed: number.and_then(|number| watchdog::abandon(self, number)),
                }
            }
        }
    }
}

impl ServerWorld<'_> {
    /// Makes a lock fit an expiry that something else set, or a key that the lock came to. A value of another type ends the wait of
    /// a client.
    fn reconcile(&mut self, key: &Key) {
        let (ctx, now) = (self.ctx, self.now);
        cluster::act_on(ctx, key, |name| {
            for kind in [LockKind::Lock, LockKind::Semaphore] {
                // The key may hold any value, and nobody uses it now: it keeps its idle time.
                match TypedKey::of(ctx.peek(name), kind.native()) {
                    Ok(key) => {
                        LockKey::with_open(ctx, name, key, kind, now, c"", |key, service| {
                            key.reconcile(&mut service.steps);
                        })
                    }
                    Err(error) => self.with_handover(|handover, clients| {
                        handover.refuse_first_of(clients, key, kind, error);
                    }),
                }
            }
        });
    }
}
