//! The deletions of clients that the server does not name: Redis 7.0.

use super::{ClientState, DeletedKeys, MOST_STATES, NameBudget};
use std::collections::BTreeSet;
use std::mem;

/// The most groups of deletions on a server that does not name clients.
const MAX_GROUPS: usize = 64;

/// Deletions of clients that the server does not name. On such a server, delayed commands arrive once more.
#[derive(Debug, Default)]
pub(in crate::server) struct Anonymous {
    /// Whether any client may be in a transaction.
    may_queue: bool,
    /// Whether a transaction has ended since the last [`Anonymous::check`].
    has_ended: bool,
    /// The deletions of all clients since the last [`Anonymous::group`].
    fresh: DeletedKeys,
    /// Older deletions, each with the clients that may have queued them, in ascending order.
    groups: Vec<(Vec<u64>, DeletedKeys)>,
    search: Option<ClientSearch>,
    budget: NameBudget,
}

/// A search for the clients in transactions, in several steps.
#[derive(Debug, Default)]
struct ClientSearch {
    /// The deletions before the search.
    keys: DeletedKeys,
    /// The next client to check.
    next: u64,
    found: Vec<u64>,
    /// Whether a transaction has begun since the search began.
    has_begun: bool,
}

impl Anonymous {
    pub(in crate::server) fn is_checked(&self) -> bool {
        !self.has_ended
    }

    pub(in crate::server) fn is_empty(&self) -> bool {
        !self.wants_group() && self.fresh.is_empty() && self.groups.is_empty()
    }

    /// Notes clients in transactions in which they may have queued any commands.
    pub(in crate::server) fn have_queued_before(&mut self, clients: Vec<u64>) {
        if !clients.is_empty() {
            self.may_queue = true;
            self.groups.push((clients, DeletedKeys::All));
        }
    }

    /// Notes that a transaction begins.
    pub(in crate::server) fn begins(&mut self) {
        self.may_queue = true;
        if let Some(search) = &mut self.search {
            search.has_begun = true;
        }
    }

    /// Notes that a command has arrived that deletes these keys, now or at an `EXEC`.
    pub(in crate::server) fn deletes<'n>(&mut self, names: impl Iterator<Item = &'n [u8]>) {
        if self.may_queue {
            self.fresh.add(names, &mut self.budget);
        }
    }

    /// Notes that a transaction ends before the next command arrives.
    pub(in crate::server) fn ends(&mut self) {
        self.has_ended = !self.is_empty();
    }

    /// Notes that the client has disconnected. Its queued commands never run, except if a transaction that has just ended was its own.
    pub(in crate::server) fn disconnects(&mut self, client: u64) {
        if self.has_ended {
            return;
        }
        let remove = |clients: &mut Vec<u64>| {
            if let Ok(index) = clients.binary_search(&client) {
                clients.remove(index);
            }
        };
        if let Some(search) = &mut self.search {
            remove(&mut search.found);
        }
        let budget = &mut self.budget;
        self.groups.retain_mut(|(clients, keys)| {
            remove(clients);
            if clients.is_empty() {
                keys.release(budget);
            }
            !clients.is_empty()
        });
    }

    /// As [`ByClient::check`].
    pub(in crate::server) fn check(
        &mut self,
        state_of: impl Fn(u64) -> ClientState,
        revoke: &mut dyn FnMut(Option<&[u8]>),
    ) {
        if !mem::take(&mut self.has_ended) {
            return;
        }
        self.fresh.revoke(revoke);
        if let Some(search) = &self.search {
            search.keys.revoke(revoke);
        }
        let clients = self.groups.iter().map(|(clients, _)| clients.len());
        if clients.sum::<usize>() > MOST_STATES {
            // The next search finds out which clients have ended their transactions.
            self.groups.iter().for_each(|(_, keys)| keys.revoke(revoke));
            return;
        }
        let budget = &mut self.budget;
        self.groups.retain_mut(|(clients, keys)| {
            let before = clients.len();
            clients.retain(|client| state_of(*client) == ClientState::InTransaction);
            if clients.len() < before {
                keys.revoke(revoke);
            }
            if clients.is_empty() {
                keys.release(budget);
            }
            !clients.is_empty()
        });
    }

    /// Whether the clients in transactions are needed for [`Anonymous::group`].
    pub(in crate::server) fn wants_group(&self) -> bool {
        self.may_queue || self.search.is_some()
    }

    /// Goes on with the search for the clients in transactions, by at most `most` of all clients, and groups the deletions before
    /// the search when all clients were checked. To be called after [`Anonymous::check`]. Returns whether it is sure that no client
    /// is in a transaction.
    pub(in crate::server) fn search(
        &mut self,
        clients: &BTreeSet<u64>,
        most: usize,
        state_of: impl Fn(u64) -> ClientState,
    ) -> bool {
        let mut search = self.search.take().unwrap_or_else(|| ClientSearch {
            keys: mem::take(&mut self.fresh),
            ..ClientSearch::default()
        });
        let checked = clients.range(search.next..).take(most);
        let mut count = 0;
        for client in checked {
            count += 1;
            search.next = client + 1;
            if state_of(*client) == ClientState::InTransaction {
                search.found.push(*client);
            }
        }
        if count == most {
            self.search = Some(search);
            return false;
        }
        let budget = &mut self.budget;
        self.groups.retain_mut(|(clients, keys)| {
            clients.retain(|client| search.found.binary_search(client).is_ok());
            if clients.is_empty() {
                keys.release(budget);
            }
            !clients.is_empty()
        });
        let is_none_open = search.found.is_empty() && !search.has_begun;
        if is_none_open {
            self.group(Vec::new()); // nobody can have queued later deletions either
        }
        self.group_keys(search.found, search.keys);
        is_none_open
    }

    /// Notes all clients in transactions, in ascending order. Only these clients can have queued the deletions that have not run.
    pub(in crate::server) fn group(&mut self, clients: Vec<u64>) {
        self.may_queue &= !clients.is_empty();
        let keys = mem::take(&mut self.fresh);
        self.group_keys(clients, keys);
    }

    fn group_keys(&mut self, clients: Vec<u64>, mut keys: DeletedKeys) {
        if clients.is_empty() {
            keys.release(&mut self.budget);
        } else if let Some((_, own)) = self.groups.iter_mut().find(|(own, _)| *own == clients) {
            match (own, keys) {
                (DeletedKeys::Named(own), DeletedKeys::Named(keys)) => own.extend(keys),
                (own, mut keys) => {
                    own.release(&mut self.budget);
                    keys.release(&mut self.budget);
                    *own = DeletedKeys::All;
                }
            }
        } else if !keys.is_empty() {
            self.groups.push((clients, keys));
            if self.groups.len() > MAX_GROUPS {
                self.merge_groups();
            }
        }
    }

    /// Merges all groups into one that stands for all keys.
    fn merge_groups(&mut self) {
        let mut clients = BTreeSet::new();
        for (own, mut keys) in self.groups.drain(..) {
            clients.extend(own);
            keys.release(&mut self.budget);
        }
        self.groups
            .push((clients.into_iter().collect(), DeletedKeys::All));
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Clients, MANY, NOTHING, names, text};
    use super::{Anonymous, ClientState, MOST_STATES};
    use ClientState::{Free, Gone, InTransaction};
    use std::cell::Cell;
    use std::collections::BTreeSet;

    #[test]
    fn the_search_for_transactions_checks_few_clients_at_a_time_and_misses_none() {
        let clients: BTreeSet<u64> = (1..=MANY).collect();
        let open = Cell::new([MANY / 2, MANY - 1]);
        let reads = Cell::new(0);
        let state_of = |client: u64| {
            reads.set(reads.get() + 1);
            match open.get().contains(&client) {
                true => InTransaction,
                false => Free,
            }
        };
        let search = |all: &mut Anonymous| {
            for ticks in 1.. {
                reads.set(0);
                all.search(&clients, MOST_STATES, state_of);
                assert!(reads.get() <= MOST_STATES);
                if all.search.is_none() {
                    assert!(ticks <= MANY as usize / MOST_STATES + 1);
                    return;
                }
            }
        };
        let check = |all: &mut Anonymous| {
            let mut revoked = Vec::new();
            let mut revoke = |key: Option<&[u8]>| revoked.push(key.map_or("*".into(), text));
            all.check(state_of, &mut revoke);
            revoked
        };
        let mut all = Anonymous::default();
        all.begins();
        all.deletes(names("a"));
        all.search(&clients, MOST_STATES, state_of);
        all.deletes(names("b")); // while the search goes on
        all.ends();
        assert_eq!(check(&mut all), ["b", "a"]);
        search(&mut all); // finds who may have queued `a`
        search(&mut all); // and `b`
        all.ends();
        assert_eq!(check(&mut all), NOTHING);
        open.set([MANY - 1, MANY - 1]);
        all.ends();
        assert_eq!(check(&mut all), ["a", "b"]);
        // A transaction that begins behind the search is not forgotten.
        open.set([0, 0]);
        all.search(&clients, MOST_STATES, state_of);
        all.begins();
        open.set([1, 1]);
        search(&mut all);
        assert!(all.wants_group());
        all.deletes(names("c"));
        all.ends();
        assert_eq!(check(&mut all), ["c"]);
        open.set([0, 0]);
        search(&mut all);
        assert!(!all.wants_group() && all.is_empty());
    }

    #[test]
    fn the_end_of_a_transaction_reads_no_states_if_many_clients_are_in_transactions() {
        let mut all = Anonymous::default();
        let (clients, states): (BTreeSet<u64>, _) =
            ((1..=MANY).collect(), Clients::all(InTransaction));
        all.begins();
        all.deletes(names("a"));
        all.search(&clients, usize::MAX, |_| states.read());
        states.reads.set(0);
        let mut revoked = Vec::new();
        for _ in 0..2 {
            all.ends();
            all.check(|_| states.read(), &mut |key| revoked.extend(key.map(text)));
        }
        assert_eq!(revoked, ["a", "a"]); // perhaps that client had queued it
        assert_eq!(states.reads.get(), 0);
        states.state.set(Free);
        all.search(&clients, usize::MAX, |_| states.read());
        assert!(all.is_empty());
    }

    #[test]
    fn without_names_of_clients_any_end_counts_until_the_clients_are_known() {
        let mut all = Anonymous::default();
        let check = |all: &mut Anonymous, open: &[u64]| {
            let mut revoked = Vec::new();
            let state = |client| match open.contains(&client) {
                true => InTransaction,
                false => Free,
            };
            let mut revoke = |key: Option<&[u8]>| revoked.push(key.map_or("*".into(), text));
            all.check(state, &mut revoke);
            revoked
        };
        all.deletes(names("a"));
        assert!(all.is_empty()); // nobody can have queued it
        all.begins();
        all.deletes(names("a"));
        all.ends();
        assert_eq!(check(&mut all, &[1, 2]), ["a"]);
        all.group(vec![1, 2]);
        all.deletes(names("b"));
        all.group(vec![1]);
        all.ends();
        assert_eq!(check(&mut all, &[1, 2]), NOTHING);
        all.ends();
        assert_eq!(check(&mut all, &[1]), ["a"]);
        all.ends();
        assert_eq!(check(&mut all, &[2]), ["a", "b"]);
        assert!(!all.is_empty());
        all.group(vec![]);
        assert!(all.is_empty());
    }

    #[test]
    fn without_names_of_clients_a_disconnected_client_runs_nothing_unless_a_transaction_has_just_ended()
     {
        let mut all = Anonymous::default();
        let check = |all: &mut Anonymous| {
            let mut revoked = Vec::new();
            let mut revoke = |key: Option<&[u8]>| revoked.push(key.map_or("*".into(), text));
            all.check(|_| Gone, &mut revoke);
            revoked
        };
        all.begins();
        all.deletes(names("a"));
        all.group(vec![1]);
        all.disconnects(1);
        assert!(all.is_checked());
        all.ends();
        assert_eq!(check(&mut all), NOTHING);
        all.deletes(names("b"));
        all.group(vec![2]);
        all.ends();
        all.disconnects(2);
        assert_eq!(check(&mut all), ["b"]);
    }
}
