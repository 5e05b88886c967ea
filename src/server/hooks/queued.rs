//! Deletions that have arrived and have not run. A command in `MULTI` runs at `EXEC`, and a command that arrives while writes are
//! paused runs after the pause. The server reports neither, so this module keeps the names of the keys until the deletion must have
//! run. In doubt, a lease is revoked: a needless revocation costs a rebuild, a missing one stale data.
//!
//! [`ByClient`] is for servers that name the client of a command, [`Anonymous`] for Redis 7.0, which does not.

use std::collections::{BTreeSet, HashMap};
use std::mem;

/// The most names of all clients together, and their most bytes. Beyond that, the end of a transaction revokes all leases.
const MAX_NAMES: usize = 10_000;
const MAX_BYTES: usize = 256 * 1024;

/// The number of rounds of the event loop after which a released client has run its delayed command: the round of the release, and
/// one more.
const ROUNDS: u32 = 2;

/// The most clients whose states are read before a command or in a tick. On Redis 7.0, each takes a system call.
pub(super) const MOST_STATES: usize = 128;

/// The most groups of deletions on a server that does not name clients.
const MAX_GROUPS: usize = 64;

/// The state of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClientState {
    /// The client has no connection. It may be a script, whose commands run at once.
    Gone,
    /// The client is in a transaction, perhaps with a delayed `EXEC`.
    InTransaction,
    /// The command of the client is delayed, or the client waits in a blocking command.
    Blocked,
    Free,
}

/// The keys of deletions.
#[derive(Debug, PartialEq, Eq)]
enum DeletedKeys {
    Named(Vec<Box<[u8]>>),
    All,
}

impl Default for DeletedKeys {
    fn default() -> Self {
        Self::Named(Vec::new())
    }
}

impl DeletedKeys {
    /// Adds names, as far as the budget allows it.
    fn add<'n>(&mut self, names: impl Iterator<Item = &'n [u8]>, budget: &mut NameBudget) {
        for name in names {
            let Self::Named(own) = self else {
                return;
            };
            if budget.take(name.len()) {
                own.push(name.into());
            } else {
                self.release(budget);
                *self = Self::All;
            }
        }
    }

    fn release(&mut self, budget: &mut NameBudget) {
        if let Self::Named(names) = self {
            names.iter().for_each(|name| budget.give_back(name.len()));
        }
    }

    /// Calls `revoke` with each key; `None` stands for all keys.
    fn revoke(&self, revoke: &mut dyn FnMut(Option<&[u8]>)) {
        match self {
            Self::All => revoke(None),
            Self::Named(names) => names.iter().for_each(|name| revoke(Some(name))),
        }
    }

    fn is_empty(&self) -> bool {
        matches!(self, Self::Named(names) if names.is_empty())
    }
}

/// The number and the bytes of the kept names.
#[derive(Debug, Default)]
struct NameBudget {
    names: usize,
    bytes: usize,
}

impl NameBudget {
    fn take(&mut self, bytes: usize) -> bool {
        let fits = self.names < MAX_NAMES && self.bytes + bytes <= MAX_BYTES;
        if fits {
            self.names += 1;
            self.bytes += bytes;
        }
        fits
    }

    fn give_back(&mut self, bytes: usize) {
        self.names -= 1;
        self.bytes -= bytes;
    }
}

/// The progress of the deletions of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DeletionStage {
    /// The command has arrived. Whether it has run shows when the next command arrives.
    Arrived,
    /// The command runs at `EXEC`.
    Queued,
    /// `EXEC`, `DISCARD` or `RESET` has arrived.
    Ending,
    /// The server has delayed the command. At the end of this number of rounds of the event loop, the client was free again.
    PutOff { rounds: u32 },
}

#[derive(Debug)]
struct Deletions {
    keys: DeletedKeys,
    stage: DeletionStage,
    /// The sequence number of the command: delayed commands run in this order.
    position: u64,
}

/// The deletions of each client.
#[derive(Debug, Default)]
pub(super) struct ByClient {
    clients: HashMap<u64, Deletions>,
    /// The clients whose states must be read before the next command.
    unsettled: BTreeSet<u64>,
    /// The sequence numbers and clients of commands that the server has put off. Their states need not be read while writes are
    /// paused.
    put_off: BTreeSet<(u64, u64)>,
    /// The sequence number of each client's last command, if it arrived after a delayed command.
    positions: HashMap<u64, u64>,
    last_position: u64,
    budget: NameBudget,
}

impl ByClient {
    /// Whether no state must be read.
    pub(super) fn is_settled(&self) -> bool {
        self.unsettled.is_empty() && self.put_off.is_empty()
    }

    /// Whether the server has put commands off.
    pub(super) fn has_put_off(&self) -> bool {
        !self.put_off.is_empty()
    }

    /// Whether there are no deletions.
    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }

    /// Notes a client in a transaction in which it may have queued any commands.
    pub(super) fn has_queued_before(&mut self, client: u64) {
        let deletions = Deletions {
            keys: DeletedKeys::All,
            stage: DeletionStage::Queued,
            position: 0,
        };
        self.clients.insert(client, deletions);
    }

    /// Notes that a command of a client has arrived. Called after [`ByClient::look`].
    pub(super) fn arrives(&mut self, client: u64) {
        if self.has_put_off() {
            self.last_position += 1;
            self.positions.insert(client, self.last_position);
        } else {
            self.positions = HashMap::new();
        }
    }

    /// Notes that a command of a client has arrived that deletes these keys, now or later.
    pub(super) fn deletes<'n>(&mut self, client: u64, names: impl Iterator<Item = &'n [u8]>) {
        self.last_position += 1;
        let deletions = self.clients.entry(client).or_insert_with(|| {
            self.unsettled.insert(client);
            Deletions {
                keys: DeletedKeys::default(),
                stage: DeletionStage::Arrived,
                position: self.last_position,
            }
        });
        deletions.keys.add(names, &mut self.budget);
    }

    /// Notes that the transaction of the client, if any, ends before its next command arrives.
    pub(super) fn ends(&mut self, client: u64) {
        if let Some(deletions) = self.clients.get_mut(&client) {
            deletions.stage = DeletionStage::Ending;
            self.unsettled.insert(client);
        }
    }

    /// Notes that the client has disconnected. Its queued commands never run. A command that was about to run may have run.
    pub(super) fn disconnects(&mut self, client: u64) {
        let stage = self.clients.get(&client).map(|deletions| deletions.stage);
        if stage == Some(DeletionStage::Queued) {
            self.forget(client);
        }
    }

    /// Calls `revoke` with the keys whose deletions may have run since the last call, and forgets deletions that have run.
    /// `current` is the client whose command is about to run, if it is known. While writes are paused, commands that were put off
    /// have not run.
    pub(super) fn look(
        &mut self,
        current: Option<u64>,
        is_paused: bool,
        state_of: impl Fn(u64) -> ClientState,
        revoke: &mut dyn FnMut(Option<&[u8]>),
    ) {
        for client in mem::take(&mut self.unsettled) {
            self.look_at(client, current, &state_of, revoke);
        }
        let of_current = current.filter(|client| {
            let deletions = self.clients.get(client);
            deletions.is_some_and(|own| self.put_off.contains(&(own.position, *client)))
        });
        if let Some(client) = of_current {
            self.look_at(client, current, &state_of, revoke);
        }
        if is_paused {
            return;
        }
        let is_any_beyond = self.put_off.len() > MOST_STATES;
        for client in self.first_put_off() {
            self.look_at(client, current, &state_of, revoke);
        }
        if is_any_beyond {
            revoke(None);
        }
    }

    /// The clients whose commands were put off first.
    fn first_put_off(&self) -> Vec<u64> {
        let first = self.put_off.iter().take(MOST_STATES);
        first.map(|(_, client)| *client).collect()
    }

    fn look_at(
        &mut self,
        client: u64,
        current: Option<u64>,
        state_of: &impl Fn(u64) -> ClientState,
        revoke: &mut dyn FnMut(Option<&[u8]>),
    ) {
        let Some(deletions) = self.clients.get_mut(&client) else {
            return;
        };
        let place = (deletions.position, client);
        let has_run = match (state_of(client), deletions.stage) {
            (ClientState::Free, DeletionStage::Arrived) => true, // it ran at once, and its leases were revoked when it arrived
            (ClientState::InTransaction, DeletionStage::Arrived) => {
                deletions.stage = DeletionStage::Queued;
                false
            }
            (ClientState::Blocked, DeletionStage::Arrived) => {
                deletions.stage = DeletionStage::PutOff { rounds: 0 };
                self.put_off.insert(place);
                false
            }
            // Until `EXEC` has run, the client is in a transaction.
            (ClientState::Blocked | ClientState::InTransaction, DeletionStage::Ending) => {
                self.put_off.insert(place);
                false
            }
            (ClientState::Blocked, DeletionStage::PutOff { .. }) => false,
            // The server has released the client, and runs its command after those that were put off before it.
            (ClientState::Free, DeletionStage::PutOff { rounds }) => {
                deletions.keys.revoke(revoke);
                let came_after = |current: u64| {
                    let position = self.positions.get(&current);
                    current == client
                        || position.is_some_and(|position| *position > deletions.position)
                };
                rounds >= ROUNDS || current.is_some_and(came_after)
            }
            _ => {
                deletions.keys.revoke(revoke);
                true
            }
        };
        if has_run {
            self.forget(client);
        }
    }

    /// Notes the end of a round of the event loop in which writes were not paused.
    pub(super) fn ends_round(&mut self, state_of: impl Fn(u64) -> ClientState) {
        for client in self.first_put_off() {
            if let Some(Deletions {
                stage: DeletionStage::PutOff { rounds },
                ..
            }) = self.clients.get_mut(&client)
                && state_of(client) == ClientState::Free
            {
                *rounds += 1;
            }
        }
    }

    fn forget(&mut self, client: u64) {
        self.unsettled.remove(&client);
        if let Some(mut deletions) = self.clients.remove(&client) {
            self.put_off.remove(&(deletions.position, client));
            deletions.keys.release(&mut self.budget);
        }
        if self.clients.is_empty() {
            *self = Self::default();
        }
    }
}

/// Deletions of clients that the server does not name. On such a server, delayed commands arrive once more.
#[derive(Debug, Default)]
pub(super) struct Anonymous {
    /// Whether any client may be in a transaction.
    may_queue: bool,
    /// Whether a transaction has ended since the last [`Anonymous::look`].
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
    /// The next client to look at.
    next: u64,
    found: Vec<u64>,
    /// Whether a transaction has begun since the search began.
    has_begun: bool,
}

impl Anonymous {
    pub(super) fn is_settled(&self) -> bool {
        !self.has_ended
    }

    pub(super) fn is_empty(&self) -> bool {
        !self.wants_group() && self.fresh.is_empty() && self.groups.is_empty()
    }

    /// Notes clients in transactions in which they may have queued any commands.
    pub(super) fn have_queued_before(&mut self, clients: Vec<u64>) {
        if !clients.is_empty() {
            self.may_queue = true;
            self.groups.push((clients, DeletedKeys::All));
        }
    }

    /// Notes that a transaction begins.
    pub(super) fn begins(&mut self) {
        self.may_queue = true;
        if let Some(search) = &mut self.search {
            search.has_begun = true;
        }
    }

    /// Notes that a command has arrived that deletes these keys, now or at an `EXEC`.
    pub(super) fn deletes<'n>(&mut self, names: impl Iterator<Item = &'n [u8]>) {
        if self.may_queue {
            self.fresh.add(names, &mut self.budget);
        }
    }

    /// Notes that a transaction ends before the next command arrives.
    pub(super) fn ends(&mut self) {
        self.has_ended = !self.is_empty();
    }

    /// Notes that the client has disconnected. Its queued commands never run, except if a transaction that has just ended was its own.
    pub(super) fn disconnects(&mut self, client: u64) {
        if self.has_ended {
            return;
        }
        let remove = |clients: &mut Vec<u64>| {
            if let Ok(place) = clients.binary_search(&client) {
                clients.remove(place);
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

    /// As [`ByClient::look`].
    pub(super) fn look(
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
    pub(super) fn wants_group(&self) -> bool {
        self.may_queue || self.search.is_some()
    }

    /// Goes on with the search for the clients in transactions, by at most `most` of all clients, and groups the deletions before
    /// the search when all clients were looked at. To be called after [`Anonymous::look`]. Returns whether it is sure that no client
    /// is in a transaction.
    pub(super) fn search(
        &mut self,
        clients: &BTreeSet<u64>,
        most: usize,
        state_of: impl Fn(u64) -> ClientState,
    ) -> bool {
        let mut search = self.search.take().unwrap_or_else(|| ClientSearch {
            keys: mem::take(&mut self.fresh),
            ..ClientSearch::default()
        });
        let looked_at = clients.range(search.next..).take(most);
        let mut count = 0;
        for client in looked_at {
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
    pub(super) fn group(&mut self, clients: Vec<u64>) {
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
    use super::{Anonymous, ByClient, ClientState, MAX_NAMES, MOST_STATES};
    use ClientState::{Blocked, Free, Gone, InTransaction};
    use std::cell::Cell;
    use std::collections::BTreeSet;

    fn names(line: &str) -> impl Iterator<Item = &[u8]> {
        line.split(' ').map(str::as_bytes)
    }

    /// What a look revokes, where one client is in this state.
    fn look(all: &mut ByClient, current: u64, state: ClientState) -> Vec<String> {
        let mut revoked = Vec::new();
        let mut revoke = |key: Option<&[u8]>| revoked.push(key.map_or("*".into(), text));
        all.look(Some(current), false, |_| state, &mut revoke);
        revoked
    }

    fn text(key: &[u8]) -> String {
        String::from_utf8_lossy(key).into_owned()
    }

    const NOTHING: [&str; 0] = [];

    #[test]
    fn a_deletion_that_runs_at_once_is_forgotten() {
        let mut all = ByClient::default();
        all.deletes(1, names("a b"));
        assert!(!all.is_settled());
        assert_eq!(look(&mut all, 2, Free), NOTHING);
        assert!(all.is_settled() && all.is_empty());
    }

    #[test]
    fn a_queued_deletion_is_revoked_when_its_own_client_ends() {
        let mut all = ByClient::default();
        all.deletes(1, names("a b"));
        assert_eq!(look(&mut all, 1, InTransaction), NOTHING);
        assert!(all.is_settled());
        all.deletes(1, names("c"));
        all.ends(2);
        assert!(all.is_settled());
        all.ends(1);
        assert_eq!(look(&mut all, 2, InTransaction), NOTHING); // `EXEC` was put off
        assert_eq!(look(&mut all, 2, Blocked), NOTHING);
        assert_eq!(look(&mut all, 2, Free), ["a", "b", "c"]);
        assert!(all.is_empty());
    }

    #[test]
    fn what_a_client_has_queued_goes_with_its_connection() {
        let mut all = ByClient::default();
        all.deletes(1, names("a"));
        look(&mut all, 1, InTransaction);
        all.disconnects(1);
        assert!(all.is_empty());
        all.deletes(1, names("a"));
        look(&mut all, 1, InTransaction);
        all.ends(1);
        all.disconnects(1);
        assert_eq!(look(&mut all, 2, Gone), ["a"]);
        assert!(all.is_empty());
    }

    #[test]
    fn a_deletion_that_was_put_off_is_revoked_until_it_has_run() {
        let mut all = ByClient::default();
        all.deletes(1, names("a"));
        assert_eq!(look(&mut all, 2, Blocked), NOTHING);
        all.arrives(2); // behind the deletion
        assert_eq!(look(&mut all, 3, Free), ["a"]); // ahead of it: it may run after this
        assert_eq!(look(&mut all, 2, Free), ["a"]);
        assert!(all.is_empty());
        all.deletes(1, names("a"));
        look(&mut all, 2, Blocked);
        all.ends_round(|_| Free);
        assert_eq!(look(&mut all, 3, Free), ["a"]);
        assert!(!all.is_empty());
        all.ends_round(|_| Free);
        assert_eq!(look(&mut all, 3, Free), ["a"]);
        assert!(all.is_empty());
    }

    #[test]
    fn too_many_names_are_all_keys() {
        let mut all = ByClient::default();
        let many: Vec<String> = (0..=MAX_NAMES).map(|number| number.to_string()).collect();
        all.deletes(1, many.iter().map(String::as_bytes));
        all.deletes(2, names("a"));
        look(&mut all, 1, InTransaction);
        all.ends(1);
        assert_eq!(look(&mut all, 1, Free), ["*"]);
        all.ends(2);
        assert_eq!(look(&mut all, 1, Free), ["a"]);
        all.has_queued_before(3);
        all.ends(3);
        assert_eq!(look(&mut all, 1, Free), ["*"]);
    }

    const MANY: u64 = 2000;

    /// Clients whose states are counted when they are read.
    struct Clients {
        state: Cell<ClientState>,
        reads: Cell<u64>,
    }

    impl Clients {
        fn all(state: ClientState) -> Self {
            let (state, reads) = (Cell::new(state), Cell::new(0));
            Self { state, reads }
        }

        fn read(&self) -> ClientState {
            self.reads.set(self.reads.get() + 1);
            self.state.get()
        }
    }

    /// Many clients whose deletions the server puts off, each of another key.
    fn many_put_off(clients: &Clients, stage: impl Fn(&mut ByClient, u64)) -> ByClient {
        let mut all = ByClient::default();
        for client in 1..=MANY {
            all.look(Some(client), true, |_| clients.read(), &mut |_| {});
            all.arrives(client);
            let name = client.to_string();
            all.deletes(client, std::iter::once(name.as_bytes()));
            stage(&mut all, client);
        }
        all.look(None, true, |_| clients.read(), &mut |_| {});
        all
    }

    #[test]
    fn in_a_pause_no_command_reads_the_states_of_all_clients_whose_commands_are_put_off() {
        let queue = |_: &mut ByClient, _| {};
        let end = |all: &mut ByClient, client| all.ends(client);
        for stage in [queue as fn(&mut ByClient, u64), end] {
            let clients = Clients::all(Blocked);
            let mut all = many_put_off(&clients, stage);
            for other in 0..MANY {
                all.look(
                    Some(MANY + 1 + other),
                    true,
                    |_| clients.read(),
                    &mut |_| panic!("nothing has run"),
                );
            }
            assert!(clients.reads.get() <= 2 * MANY, "{}", clients.reads.get());
            assert!(!all.is_settled());
        }
    }

    #[test]
    fn after_a_pause_each_command_reads_few_states_and_in_doubt_all_leases_are_revoked() {
        let clients = Clients::all(Blocked);
        let mut all = many_put_off(&clients, |_, _| {});
        clients.state.set(Free);
        let mut revoked = BTreeSet::new();
        let mut rounds = 0;
        while !all.is_empty() {
            rounds += 1;
            assert!(rounds <= MANY, "deletions are never forgotten");
            for current in [MANY + 1, MANY + 2] {
                clients.reads.set(0);
                let mut now = BTreeSet::new();
                let mut revoke = |key: Option<&[u8]>| {
                    now.insert(key.map(<[u8]>::to_vec));
                };
                all.look(Some(current), false, |_| clients.read(), &mut revoke);
                assert!(clients.reads.get() <= MOST_STATES as u64);
                // Any of those that are left may have run.
                let is_left = |client: &u64| all.clients.contains_key(client);
                let key = |client: u64| Some(client.to_string().into_bytes());
                let is_revoked = |client| now.contains(&None) || now.contains(&key(client));
                assert!((1..=MANY).filter(is_left).all(is_revoked));
                revoked.append(&mut now);
            }
            all.ends_round(|_| clients.read());
        }
        assert!((1..=MANY).all(|client| revoked.contains(&Some(client.to_string().into_bytes()))));
    }

    #[test]
    fn a_client_whose_command_was_put_off_behind_many_can_begin_a_transaction_after_it() {
        let clients = Clients::all(Blocked);
        let mut all = many_put_off(&clients, |_, _| {});
        clients.state.set(Free);
        let names_of = |all: &mut ByClient, current, state| {
            let mut names = Vec::new();
            let mut revoke = |key: Option<&[u8]>| names.extend(key.map(text));
            let state_of = |client| if client == MANY { state } else { Blocked };
            all.look(Some(current), false, state_of, &mut revoke);
            names
        };
        // `MULTI`, `DEL b` and `EXEC` of the last client, of whose first deletion the filter heard nothing since.
        assert_eq!(names_of(&mut all, MANY, Free), [MANY.to_string()]);
        all.deletes(MANY, names("b"));
        assert_eq!(names_of(&mut all, MANY, InTransaction), NOTHING);
        all.ends(MANY);
        assert_eq!(names_of(&mut all, 1, Free), ["b"]);
    }

    #[test]
    fn the_search_for_transactions_looks_at_few_clients_at_a_time_and_misses_none() {
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
        let look = |all: &mut Anonymous| {
            let mut revoked = Vec::new();
            let mut revoke = |key: Option<&[u8]>| revoked.push(key.map_or("*".into(), text));
            all.look(state_of, &mut revoke);
            revoked
        };
        let mut all = Anonymous::default();
        all.begins();
        all.deletes(names("a"));
        all.search(&clients, MOST_STATES, state_of);
        all.deletes(names("b")); // while the search goes on
        all.ends();
        assert_eq!(look(&mut all), ["b", "a"]);
        search(&mut all); // finds who may have queued `a`
        search(&mut all); // and `b`
        all.ends();
        assert_eq!(look(&mut all), NOTHING);
        open.set([MANY - 1, MANY - 1]);
        all.ends();
        assert_eq!(look(&mut all), ["a", "b"]);
        // A transaction that begins behind the search is not forgotten.
        open.set([0, 0]);
        all.search(&clients, MOST_STATES, state_of);
        all.begins();
        open.set([1, 1]);
        search(&mut all);
        assert!(all.wants_group());
        all.deletes(names("c"));
        all.ends();
        assert_eq!(look(&mut all), ["c"]);
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
            all.look(|_| states.read(), &mut |key| revoked.extend(key.map(text)));
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
        let look = |all: &mut Anonymous, open: &[u64]| {
            let mut revoked = Vec::new();
            let state = |client| match open.contains(&client) {
                true => InTransaction,
                false => Free,
            };
            let mut revoke = |key: Option<&[u8]>| revoked.push(key.map_or("*".into(), text));
            all.look(state, &mut revoke);
            revoked
        };
        all.deletes(names("a"));
        assert!(all.is_empty()); // nobody can have queued it
        all.begins();
        all.deletes(names("a"));
        all.ends();
        assert_eq!(look(&mut all, &[1, 2]), ["a"]);
        all.group(vec![1, 2]);
        all.deletes(names("b"));
        all.group(vec![1]);
        all.ends();
        assert_eq!(look(&mut all, &[1, 2]), NOTHING);
        all.ends();
        assert_eq!(look(&mut all, &[1]), ["a"]);
        all.ends();
        assert_eq!(look(&mut all, &[2]), ["a", "b"]);
        assert!(!all.is_empty());
        all.group(vec![]);
        assert!(all.is_empty());
    }

    #[test]
    fn without_names_of_clients_a_disconnected_client_runs_nothing_unless_a_transaction_has_just_ended()
     {
        let mut all = Anonymous::default();
        let look = |all: &mut Anonymous| {
            let mut revoked = Vec::new();
            let mut revoke = |key: Option<&[u8]>| revoked.push(key.map_or("*".into(), text));
            all.look(|_| Gone, &mut revoke);
            revoked
        };
        all.begins();
        all.deletes(names("a"));
        all.group(vec![1]);
        all.disconnects(1);
        assert!(all.is_settled());
        all.ends();
        assert_eq!(look(&mut all), NOTHING);
        all.deletes(names("b"));
        all.group(vec![2]);
        all.ends();
        all.disconnects(2);
        assert_eq!(look(&mut all), ["b"]);
    }
}
