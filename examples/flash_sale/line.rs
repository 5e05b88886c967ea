//! A buyer's connection to the server, which can fail between a request and its reply.

use std::time::Duration;

use redis::{Client, Cmd, Connection, FromRedisValue, Pipeline, RedisResult};

/// A reply that takes longer is an error.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Line {
    client: Client,
    connection: Connection,
}

impl Line {
    pub(crate) fn open(port: u16) -> RedisResult<Self> {
        let client = Client::open(format!("redis://127.0.0.1:{port}/"))?;
        let connection = connect(&client)?;
        Ok(Self { client, connection })
    }

    pub(crate) fn ask<T: FromRedisValue>(&mut self, request: &Cmd) -> RedisResult<T> {
        request.query(&mut self.connection)
    }

    /// Sends the request that sells an order. With `loses_reply`, the connection fails before the reply is read: the server
    /// runs the request, and the buyer has a new connection and no reply.
    pub(crate) fn decide<T: FromRedisValue>(
        &mut self,
        request: &Pipeline,
        loses_reply: bool,
    ) -> RedisResult<Option<T>> {
        if !loses_reply {
            return request.query(&mut self.connection).map(Some);
        }
        self.connection
            .send_packed_command(&request.get_packed_pipeline())?;
        self.connection = connect(&self.client)?;
        Ok(None)
    }
}

fn connect(client: &Client) -> RedisResult<Connection> {
    let connection = client.get_connection()?;
    connection.set_read_timeout(Some(PATIENCE))?;
    Ok(connection)
}
