//! Hand-overs from one client to the next one in the queue.

use crate::support::{Crowd, Raw, Server, Value};
use crate::template::Ready;

/// Clients in a queue, of whom one is being served.
pub(crate) struct Ring<'a> {
    row: &'a str,
    clients: Crowd,
    served: usize,
    give: &'a Ready<'a>,
    take: &'a Ready<'a>,
}

impl<'a> Ring<'a> {
    /// Serves one client, and queues `waiters` behind it.
    pub(crate) fn gather(
        server: &Server,
        row: &'a str,
        waiters: usize,
        give: &'a Ready<'a>,
        take: &'a Ready<'a>,
    ) -> Self {
        let others = server.info_int("blocked_clients");
        let mut clients = Crowd::connect(server, waiters + 1);
        let command = |client| take.template.text(0, client);
        clients.ask_in_order(
            |client| {
                command(client)
                    .split(' ')
                    .map(str::to_string)
                    .collect::<Vec<_>>()
            },
            |asked| server.info_int("blocked_clients") - others == asked as i64 - 1,
        );
        take.read(clients.member(0), row);
        Self {
            row,
            clients,
            served: 0,
            give,
            take,
        }
    }

    /// Hands over `times` times.
    pub(crate) fn turn(&mut self, times: u64) {
        let mut bytes = Vec::new();
        for _ in 0..times {
            bytes.clear();
            self.give.template.write(0, self.served, &mut bytes);
            self.take.template.write(0, self.served, &mut bytes);
            let giver = self.clients.member(self.served);
            giver.send_bytes(&bytes);
            self.give.read(giver, self.row);
            self.served = (self.served + 1) % self.clients.size();
            self.take.read(self.clients.member(self.served), self.row);
        }
    }
}

/// Requests of one connection in a queue, of which one is served. Another connection receives the next served request.
pub(crate) struct NotifiedRing<'a> {
    row: &'a str,
    asker: Raw,
    listener: Raw,
    /// The requests.
    size: usize,
    served: usize,
    cycle: u64,
    give: &'a Ready<'a>,
    take: &'a Ready<'a>,
}

impl<'a> NotifiedRing<'a> {
    /// One request is granted, and `waiters` wait behind it.
    pub(crate) fn gather(
        server: &Server,
        row: &'a str,
        channel: &str,
        waiters: usize,
        give: &'a Ready<'a>,
        take: &'a Ready<'a>,
    ) -> Self {
        let (mut asker, mut listener) = (Raw::connect(server), Raw::connect(server));
        let subscribed = listener.call(["SUBSCRIBE", channel]);
        assert!(!subscribed.is_err(), "{row}: {subscribed:?}");
        for client in 0..=waiters {
            let text = take.template.text(0, client);
            let reply = asker.call(text.split(' '));
            assert!(reply.is_nil() != (client == 0), "{row}: {reply:?}");
        }
        Self {
            row,
            asker,
            listener,
            size: waiters + 1,
            served: 0,
            cycle: 0,
            give,
            take,
        }
    }

    /// Hands over `times` times.
    pub(crate) fn turn(&mut self, times: u64) {
        let mut bytes = Vec::new();
        for _ in 0..times {
            self.cycle += 1;
            bytes.clear();
            let (give, take) = (&self.give.template, &self.take.template);
            give.write(self.cycle, self.served, &mut bytes);
            take.write(self.cycle, self.served, &mut bytes);
            self.asker.send_bytes(&bytes);
            self.give.read(&mut self.asker, self.row);
            self.take.read(&mut self.asker, self.row);
            self.served = (self.served + 1) % self.size;
            let message = self.listener.read();
            let text = match &message {
                Value::Array(items) => items.last().map_or("", Value::text),
                _ => "",
            };
            assert!(text.starts_with("granted "), "{}: {message:?}", self.row);
            let id = format!(" {}:", self.served);
            assert!(text.contains(&id), "{}: {text}", self.row);
        }
    }
}
