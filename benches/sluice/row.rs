//! The types of `families/`: rows of commands, ratios between them, contests and series.

use crate::support::Value;

/// The measurements of one family of commands, or of the floor.
pub(crate) struct Family {
    pub(crate) title: &'static str,
    /// The name of its chart, `docs/benchmarks/<file>.svg`.
    pub(crate) file: &'static str,
    /// The first paragraph of its section.
    pub(crate) text: &'static str,
    pub(crate) groups: &'static [Group],
    /// The rows of the chart.
    pub(crate) chart: &'static [&'static str],
    pub(crate) figures: &'static [Figure],
    pub(crate) pairs: &'static [Pair],
    pub(crate) contest: Option<Contest>,
    pub(crate) series: &'static [Series],
}

/// Rows that are compared with each other. The first one is the baseline of the ratios.
pub(crate) struct Group {
    pub(crate) name: &'static str,
    pub(crate) rows: &'static [Row],
}

/// One line of the table.
pub(crate) struct Row {
    /// Unique within its family.
    pub(crate) name: &'static str,
    /// Commands before each batch, on an empty dataset.
    pub(crate) setup: &'static [&'static str],
    pub(crate) work: Work,
    /// Items of a cycle. A row with many of them runs fewer cycles in shorter pipelines.
    pub(crate) items: u64,
    /// Commands that every connection sends before and after the row: they set and reset a mode of the server or the connection.
    pub(crate) mode: Option<[&'static str; 2]>,
}

/// The commands that are measured.
pub(crate) enum Work {
    /// These commands, over and over; all of them together are one cycle.
    Cycle(&'static [Step]),
    /// Clients in a queue. In a cycle, the served client hands over to the next client and queues again.
    HandOver {
        waiters: usize,
        give: Step,
        take: Step,
    },
    /// The same, but all requests are those of one connection, which is not blocked. Another connection receives the
    /// served request on the channel `{key}`.
    NotifiedHandOver {
        waiters: usize,
        give: Step,
        take: Step,
    },
}

/// A command and its only right reply.
///
/// The command is split at spaces. `{key}` is a key that no other row uses, `{i}` counts the cycles of a batch from 1,
/// `{100 items}` are items of the filters that `filled.rs` fills, a different hundred in each cycle; `{100 new}` are new items.
/// `{client}` is the number of the client, `{value}` is 128 bytes, `{sha:<script>}` is the digest of a script in `lua/`.
/// `{n}` is the size of a series; `{r}` is a number from 1 to that size, a different one in each cycle. `{token}` is the last
/// item of the reply to the step before, an array.
pub(crate) struct Step {
    pub(crate) command: &'static str,
    pub(crate) reply: Reply,
}

/// The reply that a step must get. Any other reply ends the benchmark, because it would measure something else.
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

/// A ratio of interest: one row over another one.
pub(crate) struct Figure {
    pub(crate) row: &'static str,
    pub(crate) over: &'static str,
    /// The design target: the largest ratio that meets it.
    pub(crate) bar: Option<f64>,
    /// The reason why the ratio misses its target. Without a target: a note for the reader.
    pub(crate) reason: &'static str,
    /// Whether it compares a hot command with its row in the floor module. If so, instructions are counted, too.
    pub(crate) is_hot: bool,
}

/// A comparison of the first chart: a Lua script and a command of Sluice, as multiples of a built-in command.
pub(crate) struct Pair {
    pub(crate) title: &'static str,
    pub(crate) built_in: &'static str,
    pub(crate) lua: &'static str,
    pub(crate) sluice: &'static str,
}

/// Three ways with the same or a similar effect, whose latencies are compared: built-in, Lua, Sluice. A request is several
/// cycles in one write.
pub(crate) struct Contest {
    pub(crate) name: &'static str,
    pub(crate) rows: [Row; 3],
}

/// How the cost of a command grows with the number of something.
pub(crate) struct Series {
    pub(crate) name: &'static str,
    /// What the numbers count.
    pub(crate) of: &'static str,
    pub(crate) sizes: &'static [u64],
    pub(crate) built_in: Probe,
    pub(crate) sluice: Probe,
    /// Whether the CPU time of the idle server is measured, too, with the largest number of them.
    pub(crate) idle: bool,
}

/// One line of a [`Series`].
pub(crate) struct Probe {
    pub(crate) name: &'static str,
    /// Commands on an empty dataset.
    pub(crate) setup: &'static [&'static str],
    /// This command runs for each `{i}` from 1 to the number. Empty: no command.
    pub(crate) fill: &'static str,
    pub(crate) load: Load,
}

/// The measured commands of a [`Probe`].
pub(crate) enum Load {
    /// Pipelined cycles.
    Cycle(&'static [Step]),
    /// A hand-over from one client to the next, one by one, in a queue of so many clients.
    Queue { give: Step, take: Step },
    /// A hand-over between two clients, while so many others wait with this command, each for its own key.
    Aside {
        waiting: &'static str,
        give: Step,
        take: Step,
    },
}

/// The implementation that a row measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    BuiltIn,
    /// The floor module, which makes only the necessary calls.
    Floor,
    Lua,
    Sluice,
}

impl Family {
    /// The row of this name.
    pub(crate) fn row(&self, name: &str) -> &'static Row {
        let mut rows = self.groups.iter().flat_map(|group| group.rows);
        rows.find(|row| row.name == name)
            .unwrap_or_else(|| panic!("{} has no row {name}", self.title))
    }
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
    /// The same row, measured between these two commands of every connection.
    pub(crate) const fn between(self, before: &'static str, after: &'static str) -> Self {
        Self {
            mode: Some([before, after]),
            ..self
        }
    }

    pub(crate) fn way(&self) -> Way {
        let mut commands = self.commands();
        if commands.any(|command| command.starts_with("EVALSHA ")) {
            Way::Lua
        } else if self.commands().any(|command| command.starts_with("FLOOR.")) {
            Way::Floor
        } else if self.needs_module() {
            Way::Sluice
        } else {
            Way::BuiltIn
        }
    }

    /// Whether it needs Sluice: module commands have a dot in their names, built-in ones have none.
    pub(crate) fn needs_module(&self) -> bool {
        let mut commands = self.setup.iter().copied().chain(self.commands());
        commands.any(|command| {
            command
                .split(' ')
                .next()
                .is_some_and(|name| name.contains('.'))
        })
    }

    fn commands(&self) -> impl Iterator<Item = &'static str> {
        let steps = match &self.work {
            Work::Cycle(steps) => steps.iter().map(|step| step.command).collect(),
            Work::HandOver { give, take, .. } | Work::NotifiedHandOver { give, take, .. } => {
                vec![give.command, take.command]
            }
        };
        steps.into_iter()
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
        mode: None,
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
        mode: None,
    }
}

pub(crate) const fn notified_hand_over(
    name: &'static str,
    waiters: usize,
    give: Step,
    take: Step,
) -> Row {
    let work = Work::NotifiedHandOver {
        waiters,
        give,
        take,
    };
    Row {
        name,
        setup: &[],
        work,
        items: 1,
        mode: None,
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
        mode: None,
    }
}

pub(crate) const fn step(command: &'static str, reply: Reply) -> Step {
    Step { command, reply }
}

/// A ratio without a design target.
pub(crate) const fn figure(row: &'static str, over: &'static str) -> Figure {
    Figure {
        row,
        over,
        bar: None,
        reason: "",
        is_hot: false,
    }
}

/// A ratio whose design target is at most `bar`.
pub(crate) const fn bar(row: &'static str, over: &'static str, bar: f64) -> Figure {
    Figure {
        row,
        over,
        bar: Some(bar),
        reason: "",
        is_hot: false,
    }
}

/// The design target of a hot command over its row in the floor module.
pub(crate) const FLOOR_BAR: f64 = 1.1;

/// A hot command over its row in the floor module.
pub(crate) const fn hot(row: &'static str, floor: &'static str) -> Figure {
    Figure {
        is_hot: true,
        ..bar(row, floor, FLOOR_BAR)
    }
}

impl Figure {
    /// Sets its [`reason`](Figure::reason).
    pub(crate) const fn because(self, reason: &'static str) -> Self {
        Self { reason, ..self }
    }
}
