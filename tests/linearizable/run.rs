//! Clients work on a few keys while things go wrong; what they asked and were told is written down.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::checker::{End, Model, Record, Verdict, Who, check, first_wrong_reply};
use crate::faults::{Fault, World};
use crate::support::{EndOnDrop, Random, Raw, Value};

/// A server that does not let clients in for this long never will.
const CONNECT_LIMIT: Duration = Duration::from_secs(60);

/// Errors that say that a command was not carried out.
const REFUSALS: [&str; 4] = ["READONLY", "LOADING", "MASTERDOWN", "DEADLOCK"];

/// The server says this to all that wait when it becomes a replica: even to those that it has served a moment ago and not
/// yet answered.
const UNBLOCKED: &str = "UNBLOCKED";

/// The client that begins and ends a history, behind no proxy.
const DIRECTOR: usize = 0;

/// A command as words.
pub type Command = Vec<String>;

/// Something that follows from an operation by itself: it happens in a time, or, without an end of that, perhaps.
#[derive(Clone)]
pub struct Aftermath<O> {
    pub op: O,
    pub from: Duration,
    pub until: Option<Duration>,
}

/// A family of commands: what its clients do, and how that is said on the wire.
pub trait Family: Sync {
    type Model: Model;
    /// What a client remembers.
    type Memory: Default;

    /// The model at the beginning.
    fn model(&self) -> Self::Model;
    /// What is done before the clients begin.
    fn first(&self) -> Vec<OpOf<Self>>;
    /// What the client does next.
    fn next(&self, me: usize, memory: &mut Self::Memory, random: &mut Random) -> OpOf<Self>;
    /// What a client learns.
    fn learn(&self, memory: &mut Self::Memory, op: &OpOf<Self>, end: &End<ReplyOf<Self>>);
    /// What is looked at when all is over.
    fn last(&self) -> Vec<OpOf<Self>>;
    /// The command for it.
    fn command(&self, op: &OpOf<Self>) -> Command;
    /// What a value says that the server sent; `None`: it is no reply to this.
    fn reply(&self, op: &OpOf<Self>, value: &Value) -> Option<ReplyOf<Self>>;
    /// What follows from it.
    fn aftermath(
        &self,
        op: &OpOf<Self>,
        from: Duration,
        end: &End<ReplyOf<Self>>,
    ) -> Vec<Aftermath<OpOf<Self>>>;
    /// What a fault does to the state.
    fn upset(&self, fault: Fault) -> Option<OpOf<Self>>;
    /// The reply of what happens by itself.
    fn happened() -> ReplyOf<Self>;
    /// Of how many independent parts the state is: each can be checked alone.
    fn parts(&self) -> usize {
        1
    }
    /// The part that it is about; `None`: all.
    fn part(&self, _op: &OpOf<Self>) -> Option<usize> {
        None
    }
    /// For how long it asks to wait in line, in milliseconds.
    fn blocks(&self, _op: &OpOf<Self>) -> u64 {
        0
    }
    /// Says it to the server and hears the reply; `None`: there was none in time.
    fn talk(
        &self,
        wire: &mut Raw,
        op: &OpOf<Self>,
        patience: Duration,
    ) -> io::Result<Option<Value>> {
        let limit = patience + Duration::from_millis(self.blocks(op));
        wire.try_call(self.command(op), limit)
    }
}

pub type OpOf<F> = <<F as Family>::Model as Model>::Op;
pub type ReplyOf<F> = <<F as Family>::Model as Model>::Reply;

/// What happened, as it was written down.
pub struct History<M: Model> {
    pub records: Vec<Record<M>>,
    /// Faults, and when they began and were over.
    pub notes: Vec<(Duration, String)>,
}

struct Recorder<M: Model> {
    start: Instant,
    history: Mutex<History<M>>,
}

impl<M: Model> Recorder<M> {
    fn new() -> Self {
        Self {
            start: Instant::now(),
            history: Mutex::new(History {
                records: Vec::new(),
                notes: Vec::new(),
            }),
        }
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn record(&self, who: Who, op: M::Op, from: Duration, end: End<M::Reply>) {
        let mut history = self.history.lock().expect("nobody panics while recording");
        history.records.push(Record { who, op, from, end });
    }

    fn note(&self, text: String) {
        let now = self.now();
        let mut history = self.history.lock().expect("nobody panics while recording");
        history.notes.push((now, text));
    }
}

/// One history: what `clients` clients do, each `ops` times at most, while these faults happen, each so many milliseconds
/// after the one before.
pub struct Plan {
    pub clients: usize,
    pub ops: u64,
    pub faults: Vec<(u64, Fault)>,
    pub seed: u64,
}

impl Plan {
    /// A plan that follows from a seed.
    pub fn of(seed: u64) -> Self {
        let random = &mut Random(seed);
        let clients = 3 + random.below(2) as usize;
        let ops = 6 + random.below(7);
        let faults = (0..random.below(6)).map(|_| (random.below(15), Fault::any(random)));
        Self {
            clients,
            ops,
            faults: faults.collect(),
            seed,
        }
    }
}

/// Is there an order that explains a history? It is linearizable if and only if each part of it is.
pub fn judge<F: Family>(family: &F, history: &History<F::Model>) -> Result<(), Judgment> {
    for part in 0..family.parts() {
        let is_about = |op| family.part(op).is_none_or(|about| about == part);
        let records = history.records.iter().filter(|record| is_about(&record.op));
        let records: Vec<_> = records.cloned().collect();
        match check(&family.model(), &records) {
            Verdict::Linearizable => {}
            Verdict::TooLong => return Err(Judgment::TooLong),
            Verdict::Violation => {
                let wrong = first_wrong_reply(&family.model(), &records);
                return Err(Judgment::Wrong(told(family, history, wrong)));
            }
        }
    }
    Ok(())
}

/// What is said of a history that is not found to be good.
pub enum Judgment {
    /// Nothing explains it: this is how it went.
    Wrong(String),
    /// The search was given up.
    TooLong,
}

/// Carries a plan out.
pub fn run<F: Family>(world: &World, family: &F, plan: &Plan) -> History<F::Model> {
    let recorder = Recorder::new();
    direct(world, family, &recorder, family.first());
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _end = EndOnDrop(&is_over);
        let clients: Vec<_> = (1..=plan.clients)
            .map(|me| {
                let recorder = &recorder;
                scope.spawn(move || {
                    let random = Random(plan.seed.wrapping_mul(31).wrapping_add(me as u64) | 1);
                    work(world, family, recorder, me, random, plan.ops);
                })
            })
            .collect();
        let (recorder, is_over) = (&recorder, &is_over);
        let faults = scope.spawn(move || {
            for (after, fault) in &plan.faults {
                thread::sleep(Duration::from_millis(*after));
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                upset(world, family, recorder, *fault);
            }
        });
        let panics = clients.into_iter().filter_map(|client| client.join().err());
        let panic = panics.last();
        is_over.store(true, Ordering::Relaxed);
        faults.join().expect("faults go as planned");
        if let Some(panic) = panic {
            std::panic::resume_unwind(panic);
        }
    });
    world.proxy.calm();
    direct(world, family, &recorder, family.last());
    recorder.history.into_inner().expect("all is written down")
}

/// The director's own operations, which meet no trouble.
fn direct<F: Family>(world: &World, family: &F, recorder: &Recorder<F::Model>, ops: Vec<OpOf<F>>) {
    let mut wire = Raw::connect(&world.server);
    for op in ops {
        let from = recorder.now();
        let value = wire.call(family.command(&op));
        let reply = family.reply(&op, &value);
        let reply = reply.unwrap_or_else(|| panic!("{:?}: {value:?}", family.command(&op)));
        recorder.record(
            Who::Client(DIRECTOR),
            op,
            from,
            End::Reply(recorder.now(), reply),
        );
    }
}

fn upset<F: Family>(world: &World, family: &F, recorder: &Recorder<F::Model>, fault: Fault) {
    let from = recorder.now();
    recorder.note(format!("{fault:?} ..."));
    world.suffer(fault);
    recorder.note(format!("... {fault:?}"));
    if let Some(op) = family.upset(fault) {
        let end = End::Reply(recorder.now(), F::happened());
        recorder.record(Who::Nobody, op, from, end);
    }
}

/// A client's life.
fn work<F: Family>(
    world: &World,
    family: &F,
    recorder: &Recorder<F::Model>,
    me: usize,
    mut random: Random,
    ops: u64,
) {
    let mut memory = F::Memory::default();
    let mut wire = None;
    for _ in 0..ops {
        thread::sleep(Duration::from_micros(random.below(2500)));
        let mut connection = wire.take().unwrap_or_else(|| connect(world));
        let op = family.next(me, &mut memory, &mut random);
        let from = recorder.now();
        let said = family.talk(&mut connection, &op, world.patience);
        let now = recorder.now();
        let end = match said {
            Err(error) => End::Unknown(error.to_string()),
            Ok(None) => End::Unknown("no reply".into()),
            Ok(Some(value)) => {
                wire = Some(connection);
                match family.reply(&op, &value) {
                    Some(reply) => End::Reply(now, reply),
                    None => without_reply(&family.command(&op), &value),
                }
            }
        };
        match &end {
            End::Unknown(_) => world.tally.add(UNKNOWN, 1),
            End::Never(_) => world.tally.add(REFUSED, 1),
            End::Reply(..) => {}
        }
        world.tally.add(OPERATIONS, 1);
        family.learn(&mut memory, &op, &end);
        for Aftermath { op, from, until } in family.aftermath(&op, from, &end) {
            let end = match until {
                Some(at) => End::Reply(at, F::happened()),
                None => End::Unknown("by itself".into()),
            };
            recorder.record(Who::Nobody, op, from, end);
        }
        recorder.record(Who::Client(me), op, from, end);
    }
}

pub const OPERATIONS: &str = "operations";
pub const UNKNOWN: &str = "of unknown outcome";
pub const REFUSED: &str = "refused with an error";

/// What an error says of what was asked; panics on one that says that something is wrong.
fn without_reply<R>(command: &Command, value: &Value) -> End<R> {
    // A replica does not grant leases. It changes nothing and refers to its master.
    if matches!(value, Value::Array(parts) if parts.first().is_some_and(|state| *state == "MISS")) {
        return End::Never("MISS".into());
    }
    let Value::Error(text) = value else {
        panic!("{command:?}: {value:?}");
    };
    if text.starts_with(UNBLOCKED) {
        return End::Unknown(text.clone());
    }
    let is_refusal = REFUSALS.iter().any(|code| text.starts_with(code));
    assert!(is_refusal, "{command:?}: {text}");
    End::Never(text.clone())
}

/// A connection through the proxy that the server answers on.
fn connect(world: &World) -> Raw {
    let deadline = Instant::now() + CONNECT_LIMIT;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        assert!(!left.is_zero(), "nobody lets a client in");
        if let Ok(mut wire) = Raw::try_connect(world.proxy.port())
            && let Ok(Some(pong)) = wire.try_call(["PING"], left)
            && pong == "PONG"
        {
            return wire;
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// A history for people: who said what when, what came back, what went wrong, and which reply nothing explains.
fn told<F: Family>(family: &F, history: &History<F::Model>, wrong: Option<Duration>) -> String {
    let mut lines: Vec<(Duration, String)> = Vec::new();
    let mut numbers: HashMap<String, usize> = HashMap::new();
    for record in &history.records {
        let who = match record.who {
            Who::Client(me) => format!("client {me}"),
            Who::Nobody => "by itself".into(),
        };
        let number = numbers.entry(who.clone()).or_default();
        *number += 1;
        let who = format!("{who}, {number}");
        let what = match record.who {
            Who::Client(_) => family.command(&record.op).join(" "),
            Who::Nobody => format!("{:?}", record.op),
        };
        lines.push((record.from, format!("{who:15} > {what}")));
        match &record.end {
            End::Reply(at, reply) => {
                let mark = if Some(*at) == wrong {
                    "   <== nothing explains this"
                } else {
                    ""
                };
                lines.push((*at, format!("{who:15} < {reply:?}{mark}")));
            }
            End::Unknown(why) => lines.push((record.from, format!("{who:15}   (unknown: {why})"))),
            End::Never(why) => lines.push((record.from, format!("{who:15}   (never: {why})"))),
        }
    }
    let notes = history.notes.iter();
    lines.extend(notes.map(|(at, text)| (*at, format!("                *** {text}"))));
    lines.sort_by_key(|(at, _)| *at);
    let mut text = String::new();
    for (at, line) in lines {
        let _ = writeln!(text, "{:9.3} ms  {line}", at.as_secs_f64() * 1000.0);
    }
    text
}
