//! What a row of the benchmark is made of. The rows themselves are in `rows.rs`.

use crate::support::Value;

/// Rows that are compared with each other. The first one is the baseline of the ratios.
pub(crate) struct Group {
    pub(crate) name: &'static str,
    pub(crate) rows: &'static [Row],
}

/// One line of the table.
pub(crate) struct Row {
    /// Unique over all groups.
    pub(crate) name: &'static str,
    /// Commands before each batch, on an empty dataset.
    pub(crate) setup: &'static [&'static str],
    pub(crate) work: Work,
    /// How many items each cycle is about: cycles of many are fewer, and their pipelines shorter.
    pub(crate) items: u64,
}

/// What is measured.
pub(crate) enum Work {
    /// These commands, over and over; all of them together are one cycle.
    Cycle(&'static [Step]),
    /// Clients in a queue: whoever is served gives to the next one and queues again, which is one cycle.
    HandOver {
        waiters: usize,
        give: Step,
        take: Step,
    },
}

/// A command and its only right reply.
///
/// The command is split at spaces. `{key}` is a key that no other row uses, `{i}` counts the cycles of a batch from 1,
/// `{100 items}` are the items of the filters that `filled.rs` makes, a hundred others in each cycle; `{100 new}` are others.
/// `{client}` is the number of the client, `{value}` is 128 bytes, `{sha:<script>}` is the digest of a script in `lua/`.
pub(crate) struct Step {
    pub(crate) command: &'static str,
    pub(crate) reply: Reply,
}

/// The reply that a step must get: anything else fails the benchmark, because it would measure something else.
pub(crate) enum Reply {
    Nil,
    /// Any integer.
    Int,
    /// This integer.
    Is(i64),
    /// This text.
    Text(&'static str),
    /// Any bulk string.
    Bulk,
    /// Any array without errors and nulls.
    Array,
    /// An array that begins with this text.
    Begins(&'static str),
    /// An array that begins with a bulk string.
    BeginsWithBulk,
}

impl Reply {
    pub(crate) fn accepts(&self, reply: &Value) -> bool {
        match (self, reply) {
            (Self::Nil, Value::Nil) | (Self::Int, Value::Int(_)) | (Self::Bulk, Value::Bulk(_)) => {
                true
            }
            (Self::Is(expected), Value::Int(number)) => number == expected,
            (Self::Text(expected), reply) => reply == expected,
            (Self::Begins(text), Value::Array(items)) => {
                items.first().is_some_and(|first| first == text)
            }
            (Self::BeginsWithBulk, Value::Array(items)) => {
                matches!(items.first(), Some(Value::Bulk(_)))
            }
            (Self::Array, Value::Array(items)) => {
                items.iter().all(|item| !item.is_err() && !item.is_nil())
            }
            _ => false,
        }
    }
}

impl Row {
    /// Whether it needs Sluice: module commands have a dot in their names, built-in ones have none.
    pub(crate) fn needs_module(&self) -> bool {
        let steps = match &self.work {
            Work::Cycle(steps) => steps.iter().map(|step| step.command).collect(),
            Work::HandOver { give, take, .. } => vec![give.command, take.command],
        };
        let mut commands = self.setup.iter().copied().chain(steps);
        commands.any(|command| {
            command
                .split(' ')
                .next()
                .is_some_and(|name| name.contains('.'))
        })
    }
}

pub(crate) const fn row(
    name: &'static str,
    setup: &'static [&'static str],
    cycle: &'static [Step],
) -> Row {
    Row {
        name,
        setup,
        work: Work::Cycle(cycle),
        items: 1,
    }
}

pub(crate) const fn hand_over(
    name: &'static str,
    setup: &'static [&'static str],
    waiters: usize,
    give: Step,
    take: Step,
) -> Row {
    let work = Work::HandOver {
        waiters,
        give,
        take,
    };
    Row {
        name,
        setup,
        work,
        items: 1,
    }
}

/// A row whose cycles are about a hundred items each.
pub(crate) const fn row_of_100(
    name: &'static str,
    setup: &'static [&'static str],
    cycle: &'static [Step],
) -> Row {
    Row {
        name,
        setup,
        work: Work::Cycle(cycle),
        items: 100,
    }
}

pub(crate) const fn step(command: &'static str, reply: Reply) -> Step {
    Step { command, reply }
}
