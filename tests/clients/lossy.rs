//! A network that loses replies: of requests to some commands, each that it sees for the first time. The connection breaks
//! when the reply comes. Who asks again, in the same words, gets an answer.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

/// A listener that hands connections on to a server, for as long as this process lives.
pub(crate) struct Lossy {
    port: u16,
}

impl Lossy {
    /// Before the server on that port.
    pub(crate) fn before(server: u16, commands: &[&'static str]) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port for the proxy");
        let port = listener.local_addr().expect("it is bound").port();
        let seen = Arc::new(Mutex::new(HashSet::new()));
        let commands = commands.to_vec();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, server)) {
                    hand_on(client, server, commands.clone(), Arc::clone(&seen));
                }
            }
        });
        Self { port }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }
}

/// The requests that were seen.
type Seen = Arc<Mutex<HashSet<Vec<u8>>>>;

/// Two threads, one for each direction, until one end closes the connection or it is to break.
fn hand_on(client: TcpStream, server: TcpStream, commands: Vec<&'static str>, seen: Seen) {
    let clone = |stream: &TcpStream| stream.try_clone().expect("a file descriptor");
    let (requests, replies) = ((clone(&client), clone(&server)), (server, client));
    let breaks = Arc::new(AtomicBool::new(false));
    let broken = Arc::clone(&breaks);
    let is_new = move |request: &[u8]| {
        seen.lock()
            .expect("nobody panics with it")
            .insert(request.into())
    };
    let is_one_of_them = move |request: &[u8]| {
        let request = String::from_utf8_lossy(request);
        commands.iter().any(|name| request.contains(name))
    };
    thread::spawn(move || {
        pump(requests, |request| {
            if is_one_of_them(request) && is_new(request) {
                breaks.store(true, Ordering::SeqCst);
            }
            true
        });
    });
    thread::spawn(move || pump(replies, |_| !broken.load(Ordering::SeqCst)));
}

/// Hands bytes on for as long as they are let through; then closes both ends.
fn pump((mut from, mut to): (TcpStream, TcpStream), mut lets: impl FnMut(&[u8]) -> bool) {
    let mut buffer = [0; 1 << 16];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        if !lets(&buffer[..length]) || to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    for end in [from, to] {
        let _ = end.shutdown(Shutdown::Both);
    }
}
