//! A connection without a client library between: any bytes, both protocols, replies read when the test wants them.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

use super::server::Server;
use super::value::{Value, parse};

/// A reply that takes longer than this is taken for lost.
const PATIENCE: Duration = Duration::from_secs(120);

/// The shortest time to wait for bytes: the system takes no timeout of zero, and one look is always made.
const GLANCE: Duration = Duration::from_millis(1);

const CHUNK: usize = 64 * 1024;

/// Enough for the replies of one client among thousands.
const SMALL_CHUNK: usize = 4096;

/// A raw connection. It speaks RESP2 until [`Raw::hello3`].
pub struct Raw {
    stream: TcpStream,
    /// What has arrived and is not read yet.
    arrived: Vec<u8>,
}

impl Raw {
    /// Connects to `server`.
    #[track_caller]
    pub fn connect(server: &Server) -> Self {
        Self::try_connect(server.port()).expect("cannot connect")
    }

    /// Connects to whoever listens on `port`.
    pub fn try_connect(port: u16) -> io::Result<Self> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            arrived: Vec::new(),
        })
    }

    /// Sends a command and reads its reply: `client.call(["LOCK.ACQUIRE", "k", "me", "PX", "100"])`.
    #[track_caller]
    pub fn call<C>(&mut self, command: C) -> Value
    where
        C: IntoIterator,
        C::Item: AsRef<[u8]>,
    {
        self.send(command);
        self.read()
    }

    /// Like [`Raw::call`], for a server that may be about to stop, or not to have started. `None`: no reply within
    /// `limit`.
    pub fn try_call<C>(&mut self, command: C, limit: Duration) -> io::Result<Option<Value>>
    where
        C: IntoIterator,
        C::Item: AsRef<[u8]>,
    {
        self.stream.write_all(&encode(command))?;
        self.try_read(limit)
    }

    /// Sends a command whose reply is read later.
    #[track_caller]
    pub fn send<C>(&mut self, command: C)
    where
        C: IntoIterator,
        C::Item: AsRef<[u8]>,
    {
        self.send_bytes(&encode(command));
    }

    /// Sends bytes as they are: several encoded commands, or nonsense.
    #[track_caller]
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("cannot send");
    }

    /// Sends all commands in one write, then reads all replies.
    #[track_caller]
    pub fn pipeline<P>(&mut self, commands: P) -> Vec<Value>
    where
        P: IntoIterator,
        P::Item: IntoIterator,
        <P::Item as IntoIterator>::Item: AsRef<[u8]>,
    {
        let encoded: Vec<_> = commands.into_iter().map(encode).collect();
        self.send_bytes(&encoded.concat());
        encoded.iter().map(|_| self.read()).collect()
    }

    /// The next reply; panics when the connection closes, or when none comes for very long.
    #[track_caller]
    pub fn read(&mut self) -> Value {
        self.read_within(PATIENCE)
            .unwrap_or_else(|| panic!("no reply within {PATIENCE:?}"))
    }

    /// The next reply if it comes within `limit`; panics when the connection closes.
    #[track_caller]
    pub fn read_within(&mut self, limit: Duration) -> Option<Value> {
        self.try_read(limit).expect("the connection failed")
    }

    /// The next reply if it comes within `limit`; an error when the connection is closed.
    pub fn try_read(&mut self, limit: Duration) -> io::Result<Option<Value>> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(value) = self.take_arrived() {
                return Ok(Some(value));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if !self.receive(left.max(GLANCE))? {
                return Ok(None);
            }
        }
    }

    /// Whether the server closes this connection within `limit`; replies on the way are dropped.
    pub fn closes_within(&mut self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.try_read(left) {
                Err(_) => return true,
                Ok(None) => return false,
                Ok(Some(_)) => {}
            }
        }
    }

    /// Switches to RESP3 and returns the server's greeting.
    #[track_caller]
    pub fn hello3(&mut self) -> Value {
        let greeting = self.call(["HELLO", "3"]);
        assert!(!greeting.is_err(), "HELLO 3: {greeting:?}");
        greeting
    }

    /// The id of this connection at the server, for `CLIENT KILL ID` and `CLIENT UNBLOCK`.
    #[track_caller]
    pub fn id(&mut self) -> i64 {
        self.call(["CLIENT", "ID"]).int()
    }

    /// A reply that has arrived completely already.
    pub(super) fn take_arrived(&mut self) -> Option<Value> {
        let (value, length) = parse(&self.arrived)?;
        self.arrived.drain(..length);
        Some(value)
    }

    /// Whether bytes have arrived that nobody has read.
    #[track_caller]
    pub fn has_received(&mut self) -> bool {
        let received = self.receive_arrived();
        received.is_err() || !self.arrived.is_empty()
    }

    /// Receives what has come, if anything has; an error when the connection is closed.
    pub(super) fn receive_arrived(&mut self) -> io::Result<()> {
        let mut chunk = [0; SMALL_CHUNK];
        // SAFETY: the kernel writes at most as many bytes as the chunk has, which lives through the call.
        let received = unsafe {
            libc::recv(
                self.fd(),
                chunk.as_mut_ptr().cast(),
                chunk.len(),
                libc::MSG_DONTWAIT,
            )
        };
        match received {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            1.. => {
                self.arrived.extend_from_slice(&chunk[..received as usize]);
                Ok(())
            }
            _ => match io::Error::last_os_error() {
                error if is_timeout(&error) || error.kind() == ErrorKind::Interrupted => Ok(()),
                error => Err(error),
            },
        }
    }

    pub(super) fn fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }

    /// Waits up to `limit` for bytes; whether to look again.
    fn receive(&mut self, limit: Duration) -> io::Result<bool> {
        self.stream.set_read_timeout(Some(limit))?;
        let mut chunk = [0; CHUNK];
        match self.stream.read(&mut chunk) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(length) => {
                self.arrived.extend_from_slice(&chunk[..length]);
                Ok(true)
            }
            Err(error) if is_timeout(&error) => Ok(false),
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(error),
        }
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// A command as the server reads it.
pub fn encode<C>(command: C) -> Vec<u8>
where
    C: IntoIterator,
    C::Item: AsRef<[u8]>,
{
    let arguments: Vec<_> = command.into_iter().collect();
    let mut bytes = format!("*{}\r\n", arguments.len()).into_bytes();
    for argument in &arguments {
        let argument = argument.as_ref();
        bytes.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        bytes.extend_from_slice(argument);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}
