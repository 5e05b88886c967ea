//! One run: fills the server, starts the worker processes, and collects their reports.

use std::io::{self, BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use indicatif::ProgressBar;

use crate::clock::now_us;
use crate::options::{Options, Task};
use crate::report::Report;
use crate::support::{Raw, Server};
use crate::way::Way;
use crate::worker::READY;

/// The reports of the buyers about a run.
pub(crate) struct Sale {
    /// One for each order, in any order.
    pub(crate) reports: Vec<Report>,
    /// The start of the sale, as `clock::now_us` returns it.
    pub(crate) started_us: u64,
}

/// A report, or the failure of a worker.
type Message = Result<Report, String>;

/// Sells all items in one way. An error is a message for the user.
pub(crate) fn run(
    server: &Server,
    options: &Options,
    way: Way,
    progress: &ProgressBar,
) -> Result<Sale, String> {
    open_shop(server, way)?;
    let mut workers = (0..options.processes)
        .map(|number| Worker::spawn(server, options, way, number))
        .collect::<io::Result<Vec<_>>>()
        .map_err(|error| format!("cannot start a worker process: {error}"))?;
    for worker in &mut workers {
        worker.await_ready()?;
    }
    let started_us = now_us();
    for worker in &mut workers {
        worker.start()?;
    }
    let messages = listen(&mut workers);
    let reports = messages
        .into_iter()
        .inspect(|_| progress.inc(1))
        .collect::<Result<_, _>>()?;
    workers.into_iter().try_for_each(Worker::finish)?;
    Ok(Sale {
        reports,
        started_us,
    })
}

/// Empties the server and creates the stock.
fn open_shop(server: &Server, way: Way) -> Result<(), String> {
    let mut client = Raw::connect(server);
    for command in ["FLUSHALL SYNC", &way.opening()] {
        let reply = client.call(command.split(' '));
        if reply != "OK" {
            return Err(format!("{command} got the reply {reply:?}"));
        }
    }
    Ok(())
}

/// The reports of all workers, until the last worker closes its output.
fn listen(workers: &mut [Worker]) -> Receiver<Message> {
    let (sender, messages) = channel();
    for lines in workers.iter_mut().filter_map(|worker| worker.lines.take()) {
        let sender = sender.clone();
        thread::spawn(move || {
            for line in lines {
                let message = line.map_err(|error| format!("cannot hear a worker: {error}"));
                // After an error of another worker, the receiver can be closed.
                let _ = sender.send(message.and_then(|line| line.parse()));
            }
        });
    }
    messages
}

/// A process of buyers, which runs this program. `drop` kills it.
struct Worker {
    child: Child,
    /// The lines of its output; `None` after another thread reads them.
    lines: Option<Lines<BufReader<ChildStdout>>>,
}

impl Worker {
    fn spawn(server: &Server, options: &Options, way: Way, number: u64) -> io::Result<Self> {
        let task = Task {
            way,
            port: server.port(),
            number,
        };
        let mut child = Command::new(std::env::current_exe()?)
            .args(options.arguments())
            .args(task.arguments())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let lines = child.stdout.take().map(|out| BufReader::new(out).lines());
        Ok(Self { child, lines })
    }

    fn await_ready(&mut self) -> Result<(), String> {
        match self.lines.as_mut().and_then(Iterator::next) {
            Some(Ok(line)) if line == READY => Ok(()),
            _ => Err("a worker process did not get ready".into()),
        }
    }

    fn start(&mut self) -> Result<(), String> {
        let input = self.child.stdin.as_mut();
        let started = input.map_or(Ok(()), |input| input.write_all(b"go\n"));
        started.map_err(|error| format!("cannot start a worker: {error}"))
    }

    /// Waits until the process ends.
    fn finish(mut self) -> Result<(), String> {
        match self.child.wait() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("a worker process failed: {status}")),
            Err(error) => Err(format!("cannot wait for a worker process: {error}")),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Neither has an effect on a process that has ended and was waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
