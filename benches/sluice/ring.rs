//! Hand-overs from one client to the next one in line.

use crate::support::{Crowd, Server};
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
    /// Lets one client in, and `waiters` queue behind it.
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
