//! A network that loses, delays and tears apart what clients and server say to each other.
//!
//! Faults are ordered beforehand; the next request or reply that comes by gets the next one of its kind. PINGs pass: with
//! them clients find out whether they are connected at all.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::faults::{Tally, kind_of};

/// What goes wrong with one request or one reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trouble {
    /// The connection breaks before it arrives.
    Lost,
    /// The connection breaks in the middle of it.
    Cut,
    /// It comes this many milliseconds later, even if its sender has gone by then.
    Late(u64),
    /// It arrives in pieces.
    Split,
}

#[derive(Default)]
struct Orders {
    requests: VecDeque<Trouble>,
    replies: VecDeque<Trouble>,
}

struct Shared {
    upstream: u16,
    orders: Mutex<Orders>,
    tally: Arc<Tally>,
    stops: AtomicBool,
}

/// A listener that hands connections on to a server, until it is dropped.
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
}

/// Which way a message goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Direction {
    Request,
    Reply,
}

impl Proxy {
    /// A proxy before the server on that port.
    pub fn before(upstream: u16, tally: &Arc<Tally>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port for the proxy");
        let port = listener.local_addr().expect("it is bound").port();
        let shared = Arc::new(Shared {
            upstream,
            orders: Mutex::default(),
            tally: Arc::clone(tally),
            stops: AtomicBool::new(false),
        });
        let own = Arc::clone(&shared);
        thread::spawn(move || accept(&listener, &own));
        Self { port, shared }
    }

    /// Where clients connect to.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Orders trouble for a request to come.
    pub fn trouble_a_request(&self, trouble: Trouble) {
        self.orders(|orders| orders.requests.push_back(trouble));
    }

    /// Orders trouble for a reply to come.
    pub fn trouble_a_reply(&self, trouble: Trouble) {
        self.orders(|orders| orders.replies.push_back(trouble));
    }

    /// Forgets what was ordered and did not come to pass.
    pub fn calm(&self) {
        self.orders(|orders| *orders = Orders::default());
    }

    fn orders(&self, change: impl FnOnce(&mut Orders)) {
        change(&mut self.shared.orders.lock().expect("no proxy panics"));
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.stops.store(true, Ordering::Relaxed);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for client in listener.incoming() {
        if shared.stops.load(Ordering::Relaxed) {
            return;
        }
        let Ok(client) = client else { continue };
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, shared.upstream));
        // A server that is down closes the client's connection: it is dropped here.
        let Ok(server) = TcpStream::connect(address) else {
            continue;
        };
        let pair = (client.try_clone(), server.try_clone());
        let (Ok(client_too), Ok(server_too)) = pair else {
            continue;
        };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let own = Arc::clone(shared);
        thread::spawn(move || pump(client, server, Direction::Request, &own));
        let own = Arc::clone(shared);
        thread::spawn(move || pump(server_too, client_too, Direction::Reply, &own));
    }
}

/// Carries bytes from one side to the other. A client asks one thing at a time, so what comes in one piece is one
/// request, or one reply.
fn pump(mut from: TcpStream, mut to: TcpStream, direction: Direction, shared: &Shared) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(length) = from.read(&mut buffer) {
        if length == 0 || !carry(&mut to, &buffer[..length], direction, shared) {
            break;
        }
    }
    // Both ends: whoever waits at the other one learns of it too.
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

/// Carries one piece, as well as it goes. Whether the connection is to go on.
fn carry(to: &mut TcpStream, bytes: &[u8], direction: Direction, shared: &Shared) -> bool {
    let trouble = match bytes {
        b"*1\r\n$4\r\nPING\r\n" | b"+PONG\r\n" => None,
        _ => {
            let mut orders = shared.orders.lock().expect("no proxy panics");
            match direction {
                Direction::Request => orders.requests.pop_front(),
                Direction::Reply => orders.replies.pop_front(),
            }
        }
    };
    if let Some(trouble) = trouble {
        shared.tally.add(kind_of(direction, trouble), 1);
    }
    match trouble {
        None => to.write_all(bytes).is_ok(),
        Some(Trouble::Lost) => false,
        Some(Trouble::Cut) => {
            let _ = to.write_all(&bytes[..bytes.len() / 2]);
            false
        }
        Some(Trouble::Late(ms)) => {
            thread::sleep(Duration::from_millis(ms));
            to.write_all(bytes).is_ok()
        }
        Some(Trouble::Split) => bytes.chunks(5).all(|piece| {
            thread::sleep(Duration::from_micros(100));
            to.write_all(piece).is_ok()
        }),
    }
}
