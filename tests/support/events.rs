//! Keyspace events as a client hears them.

use super::client::Raw;
use super::server::Server;
use super::talk::Lines as _;

/// A connection that gets all keyspace events of all databases.
pub struct KeyspaceEvents(Raw);

impl KeyspaceEvents {
    /// Turns the events of these classes on and subscribes to them.
    #[track_caller]
    pub fn of(server: &Server, classes: &str) -> Self {
        server.command(["CONFIG", "SET", "notify-keyspace-events", classes]);
        let mut client = Raw::connect(server);
        client.run("PSUBSCRIBE __keyevent@*__:*");
        Self(client)
    }

    /// The events until now, as `event key`.
    #[track_caller]
    pub fn take(&mut self) -> Vec<String> {
        self.0.send(["PING"]);
        let mut events = Vec::new();
        loop {
            let message = self.0.read();
            let parts = message.array();
            if parts[0] == "pong" {
                return events;
            }
            let channel = parts[2].text();
            let event = channel.split_once(':').map_or(channel, |(_, event)| event);
            events.push(format!("{event} {}", parts[3].text()));
        }
    }
}
