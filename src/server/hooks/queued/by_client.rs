//! The deletions of each client, where the server names the client of a command.

use super::{ClientState, DeletedKeys, MOST_STATES, NameBudget};
use std::collections::{BTreeSet, HashMap};
use std::mem;

/// The number of rounds of the event loop after which a released client has run its delayed command: the round of the release, and
/// one more.
const ROUNDS: u32 = 2;

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
    Delayed { rounds: u32 },
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
pub(in crate::server) struct ByClient {
    clients: HashMap<u64, Deletions>,
    /// The clients whose states must be read before the next command.
    unchecked: BTreeSet<u64>,
    /// The sequence numbers and clients of commands that the server has delayed. Their states need not be read while writes are
    /// paused.
    delayed: BTreeSet<(u64, u64)>,
    /// The sequence number of each client's last command, if it arrived after a delayed command.
    positions: HashMap<u64, u64>,
    last_position: u64,
    budget: NameBudget,
}

impl ByClient {
    /// Whether no state must be read.
    pub(in crate::server) fn is_checked(&self) -> bool {
        self.unchecked.is_empty() && self.delayed.is_empty()
    }

    /// Whether the server has delayed commands.
    pub(in crate::server) fn has_delayed(&self) -> bool {
        !self.delayed.is_empty()
    }

    /// Whether there are no deletions.
    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }

    /// Notes a client in a transaction in which it may have queued any commands.
    pub(in crate::server) fn has_queued_before(&mut self, client: u64) {
        let deletions = Deletions {
            keys: DeletedKeys::All,
            stage: DeletionStage::Queued,
            position: 0,
        };
        self.clients.insert(client, deletions);
    }

    /// Notes that a command of a client has arrived. Called after [`ByClient::check`].
    pub(in crate::server) fn arrives(&mut self, client: u64) {
        if self.has_delayed() {
            self.last_position += 1;
            self.positions.insert(client, self.last_position);
        } else {
            self.positions = HashMap::new();
        }
    }

    /// Notes that a command of a client has arrived that deletes these keys, now or later.
    pub(in crate::server) fn deletes<'n>(
        &mut self,
        client: u64,
        names: impl Iterator<Item = &'n [u8]>,
    ) {
        self.last_position += 1;
        let deletions = self.clients.entry(client).or_insert_with(|| {
            self.unchecked.insert(client);
            Deletions {
                keys: DeletedKeys::default(),
                stage: DeletionStage::Arrived,
                position: self.last_position,
            }
        });
        deletions.keys.add(names, &mut self.budget);
    }

    /// Notes that the transaction of the client, if any, ends before its next command arrives.
    pub(in crate::server) fn ends(&mut self, client: u64) {
        if let Some(deletions) = self.clients.get_mut(&client) {
            deletions.stage = DeletionStage::Ending;
            self.unchecked.insert(client);
        }
    }

    /// Notes that the client has disconnected. Its queued commands never run. A command that was about to run may have run.
    pub(in crate::server) fn disconnects(&mut self, client: u64) {
        let stage = self.clients.get(&client).map(|deletions| deletions.stage);
        if stage == Some(DeletionStage::Queued) {
            self.forget(client);
        }
    }

    /// Calls `revoke` with the keys whose deletions may have run since the last call, and forgets deletions that have run.
    /// `current` is the client whose command is about to run, if it is known. While writes are paused, commands that were delayed
    /// have not run.
    pub(in crate::server) fn check(
        &mut self,
        current: Option<u64>,
        is_paused: bool,
        state_of: impl Fn(u64) -> ClientState,
        revoke: &mut dyn FnMut(Option<&[u8]>),
    ) {
        for client in mem::take(&mut self.unchecked) {
            self.check_client(client, current, &state_of, revoke);
        }
        let of_current = current.filter(|client| {
            let deletions = self.clients.get(client);
            deletions.is_some_and(|own| self.delayed.contains(&(own.position, *client)))
        });
        if let Some(client) = of_current {
            self.check_client(client, current, &state_of, revoke);
        }
        if is_paused {
            return;
        }
        let is_any_beyond = self.delayed.len() > MOST_STATES;
        for client in self.first_delayed() {
            self.check_client(client, current, &state_of, revoke);
        }
        if is_any_beyond {
            revoke(None);
        }
    }

    /// The clients whose commands were delayed first.
    fn first_delayed(&self) -> Vec<u64> {
        let first = self.delayed.iter().take(MOST_STATES);
        first.map(|(_, client)| *client).collect()
    }

    fn check_client(
        &mut self,
        client: u64,
        current: Option<u64>,
        state_of: &impl Fn(u64) -> ClientState,
        revoke: &mut dyn FnMut(Option<&[u8]>),
    ) {
        let Some(deletions) = self.clients.get_mut(&client) else {
            return;
        };
        let position_and_client = (deletions.position, client);
        let has_run = match (state_of(client), deletions.stage) {
            (ClientState::Free, DeletionStage::Arrived) => true, // it ran at once, and its leases were revoked when it arrived
            (ClientState::InTransaction, DeletionStage::Arrived) => {
                deletions.stage = DeletionStage::Queued;
                false
            }
            (ClientState::Blocked, DeletionStage::Arrived) => {
                deletions.stage = DeletionStage::Delayed { rounds: 0 };
                self.delayed.insert(position_and_client);
                false
            }
            // Until `EXEC` has run, the client is in a transaction.
            (ClientState::Blocked | ClientState::InTransaction, DeletionStage::Ending) => {
                self.delayed.insert(position_and_client);
                false
            }
            (ClientState::Blocked, DeletionStage::Delayed { .. }) => false,
            // The server has released the client, and runs its command after those that were delayed before it.
            (ClientState::Free, DeletionStage::Delayed { rounds }) => {
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
    pub(in crate::server) fn ends_round(&mut self, state_of: impl Fn(u64) -> ClientState) {
        for client in self.first_delayed() {
            if let Some(Deletions {
                stage: DeletionStage::Delayed { rounds },
                ..
            }) = self.clients.get_mut(&client)
                && state_of(client) == ClientState::Free
            {
                *rounds += 1;
            }
        }
    }

    fn forget(&mut self, client: u64) {
        self.unchecked.remove(&client);
        if let Some(mut deletions) = self.clients.remove(&client) {
            self.delayed.remove(&(deletions.position, client));
            deletions.keys.release(&mut self.budget);
        }
        if self.clients.is_empty() {
            *self = Self::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::MAX_NAMES;
    use super::super::tests::{Clients, MANY, NOTHING, names, text};
    use super::{ByClient, ClientState, MOST_STATES};
    use ClientState::{Blocked, Free, Gone, InTransaction};
    use std::collections::BTreeSet;

    /// What a check revokes, where one client is in this state.
    fn check(all: &mut ByClient, current: u64, state: ClientState) -> Vec<String> {
        let mut revoked = Vec::new();
        let mut revoke = |key: Option<&[u8]>| revoked.push(key.map_or("*".into(), text));
        all.check(Some(current), false, |_| state, &mut revoke);
        revoked
    }

    #[test]
    fn a_deletion_that_runs_at_once_is_forgotten() {
        let mut all = ByClient::default();
        all.deletes(1, names("a b"));
        assert!(!all.is_checked());
        assert_eq!(check(&mut all, 2, Free), NOTHING);
        assert!(all.is_checked() && all.is_empty());
    }

    #[test]
    fn a_queued_deletion_is_revoked_when_its_own_client_ends() {
        let mut all = ByClient::default();
        all.deletes(1, names("a b"));
        assert_eq!(check(&mut all, 1, InTransaction), NOTHING);
        assert!(all.is_checked());
        all.deletes(1, names("c"));
        all.ends(2);
        assert!(all.is_checked());
        all.ends(1);
        assert_eq!(check(&mut all, 2, InTransaction), NOTHING); // `EXEC` was delayed
        assert_eq!(check(&mut all, 2, Blocked), NOTHING);
        assert_eq!(check(&mut all, 2, Free), ["a", "b", "c"]);
        assert!(all.is_empty());
    }

    #[test]
    fn what_a_client_has_queued_goes_with_its_connection() {
        let mut all = ByClient::default();
        all.deletes(1, names("a"));
        check(&mut all, 1, InTransaction);
        all.disconnects(1);
        assert!(all.is_empty());
        all.deletes(1, names("a"));
        check(&mut all, 1, InTransaction);
        all.ends(1);
        all.disconnects(1);
        assert_eq!(check(&mut all, 2, Gone), ["a"]);
        assert!(all.is_empty());
    }

    #[test]
    fn a_deletion_that_was_delayed_is_revoked_until_it_has_run() {
        let mut all = ByClient::default();
        all.deletes(1, names("a"));
        assert_eq!(check(&mut all, 2, Blocked), NOTHING);
        all.arrives(2); // behind the deletion
        assert_eq!(check(&mut all, 3, Free), ["a"]); // ahead of it: it may run after this
        assert_eq!(check(&mut all, 2, Free), ["a"]);
        assert!(all.is_empty());
        all.deletes(1, names("a"));
        check(&mut all, 2, Blocked);
        all.ends_round(|_| Free);
        assert_eq!(check(&mut all, 3, Free), ["a"]);
        assert!(!all.is_empty());
        all.ends_round(|_| Free);
        assert_eq!(check(&mut all, 3, Free), ["a"]);
        assert!(all.is_empty());
    }

    #[test]
    fn too_many_names_are_all_keys() {
        let mut all = ByClient::default();
        let many: Vec<String> = (0..=MAX_NAMES).map(|number| number.to_string()).collect();
        all.deletes(1, many.iter().map(String::as_bytes));
        all.deletes(2, names("a"));
        check(&mut all, 1, InTransaction);
        all.ends(1);
        assert_eq!(check(&mut all, 1, Free), ["*"]);
        all.ends(2);
        assert_eq!(check(&mut all, 1, Free), ["a"]);
        all.has_queued_before(3);
        all.ends(3);
        assert_eq!(check(&mut all, 1, Free), ["*"]);
    }

    /// Many clients whose deletions the server delays, each of another key.
    fn many_delayed(clients: &Clients, stage: impl Fn(&mut ByClient, u64)) -> ByClient {
        let mut all = ByClient::default();
        for client in 1..=MANY {
            all.check(Some(client), true, |_| clients.read(), &mut |_| {});
            all.arrives(client);
            let name = client.to_string();
            all.deletes(client, std::iter::once(name.as_bytes()));
            stage(&mut all, client);
        }
        all.check(None, true, |_| clients.read(), &mut |_| {});
        all
    }

    #[test]
    fn in_a_pause_no_command_reads_the_states_of_all_clients_whose_commands_are_delayed() {
        let queue = |_: &mut ByClient, _| {};
        let end = |all: &mut ByClient, client| all.ends(client);
        for stage in [queue as fn(&mut ByClient, u64), end] {
            let clients = Clients::all(Blocked);
            let mut all = many_delayed(&clients, stage);
            for other in 0..MANY {
                all.check(
                    Some(MANY + 1 + other),
                    true,
                    |_| clients.read(),
                    &mut |_| panic!("nothing has run"),
                );
            }
            assert!(clients.reads.get() <= 2 * MANY, "{}", clients.reads.get());
            assert!(!all.is_checked());
        }
    }

    #[test]
    fn after_a_pause_each_command_reads_few_states_and_in_doubt_all_leases_are_revoked() {
        let clients = Clients::all(Blocked);
        let mut all = many_delayed(&clients, |_, _| {});
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
                all.check(Some(current), false, |_| clients.read(), &mut revoke);
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
    fn a_client_whose_command_was_delayed_behind_many_can_begin_a_transaction_after_it() {
        let clients = Clients::all(Blocked);
        let mut all = many_delayed(&clients, |_, _| {});
        clients.state.set(Free);
        let names_of = |all: &mut ByClient, current, state| {
            let mut names = Vec::new();
            let mut revoke = |key: Option<&[u8]>| names.extend(key.map(text));
            let state_of = |client| if client == MANY { state } else { Blocked };
            all.check(Some(current), false, state_of, &mut revoke);
            names
        };
        // `MULTI`, `DEL b` and `EXEC` of the last client, of whose first deletion the filter heard nothing since.
        assert_eq!(names_of(&mut all, MANY, Free), [MANY.to_string()]);
        all.deletes(MANY, names("b"));
        assert_eq!(names_of(&mut all, MANY, InTransaction), NOTHING);
        all.ends(MANY);
        assert_eq!(names_of(&mut all, 1, Free), ["b"]);
    }
}
