//! Clients that lose connections while they add and cancel messages: whatever request or reply is lost, the stream holds
//! what an order of the requests explains.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;

use crate::support::delay::{entries, number};
use crate::support::{Lines, Random, Raw, SOON, Server, encode, eventually, server_and_client};

const CLIENTS: u64 = 6;

const MESSAGES: u64 = 60;

/// A request about one message id, with the reply, or `None` if the connection broke before the reply.
#[derive(Clone, Copy, Debug)]
enum Request {
    /// `DELAY.ADD` with the number of the attempt as the value.
    Add(u64, Option<i64>),
    Cancel(Option<i64>),
}

/// The undelivered attempt of an id, and the delivered attempts in their order.
type State = (Option<u64>, Vec<u64>);

/// The states after a request that the server executed, with its reply.
fn executed(state: &State, request: Request) -> (State, i64) {
    let (pending, delivered) = state;
    match request {
        Request::Add(attempt, _) => {
            let is_new = i64::from(pending.is_none());
            ((Some(attempt), delivered.clone()), is_new)
        }
        Request::Cancel(_) => ((None, delivered.clone()), i64::from(pending.is_some())),
    }
}

/// The states that a delivery, at any moment, can lead to.
fn with_deliveries(states: BTreeSet<State>) -> BTreeSet<State> {
    let after = states.iter().filter_map(|(pending, delivered)| {
        let delivered = delivered.iter().copied().chain(*pending);
        pending.map(|_| (None, delivered.collect()))
    });
    let after: Vec<State> = after.collect();
    states.into_iter().chain(after).collect()
}

/// Whether the requests about one id, sent one after another, explain the attempts that the stream holds. No message is
/// pending at the end.
fn can_explain(requests: &[Request], stream: &[u64]) -> bool {
    let mut states = BTreeSet::from([(None, Vec::new())]);
    for &request in requests {
        let (Request::Add(_, reply) | Request::Cancel(reply)) = request;
        let mut next = BTreeSet::new();
        for state in with_deliveries(states) {
            let (after, expected) = executed(&state, request);
            if reply.is_none_or(|reply| reply == expected) {
                next.insert(after);
            }
            if reply.is_none() {
                next.insert(state);
            }
        }
        states = next;
    }
    with_deliveries(states).contains(&(None, stream.to_vec()))
}

#[test]
fn the_checker_finds_lost_and_repeated_messages() {
    use Request::{Add, Cancel};
    assert!(can_explain(&[Add(0, Some(1))], &[0]));
    assert!(can_explain(&[Add(0, None)], &[]));
    assert!(can_explain(&[Add(0, None), Add(1, Some(1))], &[0, 1]));
    assert!(can_explain(&[Add(0, Some(1)), Cancel(None)], &[]));
    // An acknowledged message is lost.
    assert!(!can_explain(&[Add(0, Some(1))], &[]));
    // A message is delivered twice.
    assert!(!can_explain(&[Add(0, None)], &[0, 0]));
    // A canceled or a replaced message is delivered.
    assert!(!can_explain(&[Add(0, Some(1)), Cancel(Some(1))], &[0]));
    assert!(!can_explain(&[Add(0, None), Add(1, Some(0))], &[0, 1]));
    // A message is gone that no request removed.
    assert!(!can_explain(&[Add(0, Some(1)), Cancel(Some(0))], &[]));
    // The later message overtakes.
    assert!(!can_explain(&[Add(0, None), Add(1, Some(1))], &[1, 0]));
}

/// A client whose connection breaks in a third of its requests.
struct Client<'a> {
    server: &'a Server,
    observer: Raw,
    connection: Raw,
    random: Random,
    lost: u64,
}

impl<'a> Client<'a> {
    fn new(server: &'a Server, seed: u64) -> Self {
        Self {
            server,
            observer: Raw::connect(server),
            connection: Raw::connect(server),
            random: Random(seed),
            lost: 0,
        }
    }

    /// Sends a request. `None`: the connection broke, and the server has closed it, so the request cannot run later.
    fn send(&mut self, line: &str) -> Option<i64> {
        let bytes = encode(line.split(' '));
        let length = match self.random.below(6) {
            0 => self.random.below(bytes.len() as u64) as usize,
            1 => bytes.len(),
            _ => return Some(self.connection.must(line).int()),
        };
        self.lost += 1;
        let id = self.connection.id();
        self.connection.send_bytes(&bytes[..length]);
        self.connection = Raw::connect(self.server);
        let list = format!("CLIENT LIST ID {id}");
        eventually(SOON, || self.observer.must(&list).bytes().is_empty());
        None
    }

    /// Adds, adds again and cancels one message.
    fn use_id(&mut self, id: &str) -> Vec<Request> {
        let mut requests = Vec::new();
        for attempt in 0..1 + self.random.below(5) {
            let request = if self.random.below(3) == 0 {
                Request::Cancel(self.send(&format!("DELAY.CANCEL q {id}")))
            } else {
                let ms = self.random.below(30);
                let line = format!("DELAY.ADD q {id} PX {ms} VALUES id {id} attempt {attempt}");
                Request::Add(attempt, self.send(&line))
            };
            requests.push(request);
        }
        requests
    }
}

#[test]
fn lost_requests_and_replies_neither_lose_nor_repeat_messages() {
    let (server, mut client) = server_and_client();
    client.must("DELAY.SET q STREAM s");
    let histories: Vec<_> = thread::scope(|scope| {
        let server = &server;
        let clients = (1..=CLIENTS).map(|number| {
            scope.spawn(move || {
                let mut client = Client::new(server, number);
                let ids = (0..MESSAGES).map(|message| format!("{number}-{message}"));
                let history = ids.map(|id| (client.use_id(&id), id)).collect::<Vec<_>>();
                assert!(client.lost > 0, "client {number} lost nothing");
                history
            })
        });
        let clients: Vec<_> = clients.collect();
        let histories = clients.into_iter();
        histories
            .flat_map(|client| client.join().expect("a client"))
            .collect()
    });
    eventually(SOON, || number(&mut client, "q", "messages") == 0);
    let mut streams = BTreeMap::<String, Vec<u64>>::new();
    for entry in entries(&mut client, "s") {
        let words: Vec<_> = entry.split(' ').collect();
        let attempt = words[3].parse().expect("an attempt");
        streams.entry(words[1].into()).or_default().push(attempt);
    }
    let delivered: usize = streams.values().map(Vec::len).sum();
    assert_eq!(number(&mut client, "q", "delivered"), delivered as i64);
    for (requests, id) in histories {
        let stream = streams.remove(&id).unwrap_or_default();
        assert!(
            can_explain(&requests, &stream),
            "{id}: {requests:?} do not explain {stream:?}"
        );
    }
    assert!(streams.is_empty(), "unknown ids: {streams:?}");
}
