//! Sends cycles of commands to the server, in pipelines or one by one, and measures the server's time for them.

use crate::cpu::main_thread_time;
use crate::support::Raw;
use crate::template::Ready;

/// Microseconds that the server's main thread runs for each of `cycles`.
pub(crate) fn timed(pid: u32, cycles: u64, work: impl FnOnce(u64)) -> f64 {
    let before = main_thread_time(pid);
    work(cycles);
    let nanoseconds = main_thread_time(pid) - before;
    nanoseconds as f64 / cycles as f64 / 1000.0
}

/// Sends the cycles of a row.
pub(crate) struct Stream<'a> {
    row: &'a str,
    steps: &'a [Ready<'a>],
    /// The cycles sent so far.
    cycle: u64,
}

impl<'a> Stream<'a> {
    pub(crate) fn new(row: &'a str, steps: &'a [Ready<'a>]) -> Self {
        Self {
            row,
            steps,
            cycle: 0,
        }
    }

    /// Sends `cycles`: to each client in turn a write of whole cycles, about `pipeline` commands, and reads all replies
    /// before the next turn.
    pub(crate) fn send(&mut self, clients: &mut [Raw], cycles: u64, pipeline: usize) {
        if self.needs_tokens() {
            return self.send_with_tokens(clients, cycles, pipeline);
        }
        let batch = (pipeline / self.steps.len()).max(1) as u64;
        let last = self.cycle + cycles;
        let mut bytes = Vec::new();
        while self.cycle < last {
            let mut sent = vec![0; clients.len()];
            for (number, (client, sent)) in clients.iter_mut().zip(&mut sent).enumerate() {
                *sent = batch.min(last - self.cycle);
                bytes.clear();
                for _ in 0..*sent {
                    self.cycle += 1;
                    for step in self.steps {
                        step.template.write(self.cycle, number, &mut bytes);
                    }
                }
                client.send_bytes(&bytes);
            }
            for (client, sent) in clients.iter_mut().zip(sent) {
                for step in (0..sent).flat_map(|_| self.steps) {
                    step.read(client, self.row);
                }
            }
        }
    }

    fn needs_tokens(&self) -> bool {
        self.steps.iter().any(|step| step.template.needs_token())
    }

    /// The same for steps that need the replies of the steps before them: a write consists of one step of many cycles.
    fn send_with_tokens(&mut self, clients: &mut [Raw], cycles: u64, pipeline: usize) {
        let last = self.cycle + cycles;
        let mut bytes = Vec::new();
        while self.cycle < last {
            let mut tokens: Vec<Vec<(u64, i64)>> = Vec::new();
            for _ in 0..clients.len() {
                let sent = (pipeline as u64).min(last - self.cycle);
                tokens.push((1..=sent).map(|cycle| (self.cycle + cycle, 0)).collect());
                self.cycle += sent;
            }
            for step in self.steps {
                for (number, (client, tokens)) in clients.iter_mut().zip(&tokens).enumerate() {
                    bytes.clear();
                    for (cycle, token) in tokens {
                        step.template.write_with(*token, *cycle, number, &mut bytes);
                    }
                    client.send_bytes(&bytes);
                }
                for (client, tokens) in clients.iter_mut().zip(&mut tokens) {
                    for (_, token) in tokens {
                        *token = step.read_token(client, self.row);
                    }
                }
            }
        }
    }

    /// Sends `cycles`, waiting for each reply before the next command.
    pub(crate) fn send_one_by_one(&mut self, client: &mut Raw, cycles: u64) {
        let mut bytes = Vec::new();
        for _ in 0..cycles {
            self.cycle += 1;
            let mut token = 0;
            for step in self.steps {
                bytes.clear();
                if self.needs_tokens() {
                    step.template.write_with(token, self.cycle, 0, &mut bytes);
                } else {
                    step.template.write(self.cycle, 0, &mut bytes);
                }
                client.send_bytes(&bytes);
                token = step.read_token(client, self.row);
            }
        }
    }
}
