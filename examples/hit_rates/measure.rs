//! The loads, and the servers that serve them.

use std::collections::HashSet;
use std::env;
use std::error::Error;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use redis::{Client, Connection, cmd, pipe};

/// The memory of the cache as a share of the memory of all values.
pub(crate) const CAPACITIES: [f64; 4] = [0.02, 0.05, 0.1, 0.3];

const KEYS: u64 = 100_000;
const VALUE_BYTES: usize = 500;
const REQUESTS: u64 = 400_000;
/// The first requests fill the cache and do not count.
const WARM_UP: u64 = 200_000;
/// Reads in one pipeline. The next pipeline writes the keys that were missing.
const BATCH: u64 = 50;

/// The order of the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    Zipf,
    Scans,
    Changing,
    Shifting,
}

impl Load {
    pub(crate) const ALL: [Self; 4] = [Self::Zipf, Self::Scans, Self::Changing, Self::Shifting];

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Zipf => "Zipf",
            Self::Scans => "Zipf, and a third of the requests are scans",
            Self::Changing => "Zipf, with other hot keys after each 50 000 requests",
            Self::Shifting => "Zipf, with another hottest key after each 20 requests",
        }
    }

    fn key(self, number: u64, rank: u64) -> u64 {
        match self {
            Self::Zipf => rank,
            Self::Scans if number.is_multiple_of(3) => KEYS + number,
            Self::Scans => rank,
            Self::Changing => (rank + number / 50_000 * 10_007) % KEYS,
            // A key becomes hotter until it is the hottest, and then it is the coldest.
            Self::Shifting => (rank + number / 20) % KEYS,
        }
    }
}

/// The shares of reads that were hits.
#[derive(Debug)]
pub(crate) struct Ratios {
    pub(crate) sieve: f64,
    pub(crate) lru: f64,
    pub(crate) lfu: f64,
}

/// Measures a load at a capacity with the three policies.
pub(crate) fn measure(load: Load, capacity: f64) -> Result<Ratios, Box<dyn Error>> {
    let mut server = Server::start()?;
    let before = server.used_memory()?;
    let all = KEYS as f64 * server.bytes_of_entry()? as f64;
    let budget = (all * capacity) as u64;
    server.config("sluice.cache-max-bytes", &budget.to_string())?;
    let sieve = server.run(load, "CACHE.GET", "CACHE.SET")?;
    let memory = server.used_memory()?.saturating_sub(before);
    let of_policy = |policy: &str| -> Result<f64, Box<dyn Error>> {
        let mut server = Server::start()?;
        let limit = server.used_memory()? + memory;
        server.config("maxmemory", &limit.to_string())?;
        server.config("maxmemory-policy", policy)?;
        server.run(load, "GET", "SET")
    };
    Ok(Ratios {
        sieve,
        lru: of_policy("allkeys-lru")?,
        lfu: of_policy("allkeys-lfu")?,
    })
}

struct Server {
    process: Child,
    connection: Connection,
}

impl Server {
    fn start() -> Result<Self, Box<dyn Error>> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let server = env::var("SERVER").unwrap_or_else(|_| "redis-server".to_owned());
        let module = env::var("SLUICE_MODULE")?;
        let process = Command::new(server)
            .args([
                "--port",
                &port.to_string(),
                "--save",
                "",
                "--loadmodule",
                &module,
            ])
            .stdout(Stdio::null())
            .spawn()?;
        let client = Client::open(("127.0.0.1", port))?;
        for _ in 0..100 {
            if let Ok(connection) = client.get_connection() {
                return Ok(Self {
                    process,
                    connection,
                });
            }
            sleep(Duration::from_millis(50));
        }
        Err("the server does not start".into())
    }

    fn config(&mut self, name: &str, value: &str) -> Result<(), Box<dyn Error>> {
        let mut command = cmd("CONFIG");
        command.arg("SET").arg(name).arg(value);
        Ok(command.query(&mut self.connection)?)
    }

    fn used_memory(&mut self) -> Result<u64, Box<dyn Error>> {
        let info: String = cmd("INFO").arg("memory").query(&mut self.connection)?;
        let mut lines = info.lines();
        let line = lines.find_map(|line| line.strip_prefix("used_memory:"));
        Ok(line.ok_or("INFO has no used_memory")?.parse()?)
    }

    fn bytes_of_entry(&mut self) -> Result<u64, Box<dyn Error>> {
        let connection = &mut self.connection;
        let value = [b'v'; VALUE_BYTES];
        let mut set = cmd("CACHE.SET");
        let () = set
            .arg("key:50000")
            .arg(&value)
            .arg("PX")
            .arg(3_600_000)
            .query(connection)?;
        let bytes = cmd("MEMORY")
            .arg("USAGE")
            .arg("key:50000")
            .query(connection)?;
        let () = cmd("FLUSHALL").query(connection)?;
        Ok(bytes)
    }

    /// Reads keys, and writes those that are missing. Returns the share of hits.
    fn run(&mut self, load: Load, read: &str, write: &str) -> Result<f64, Box<dyn Error>> {
        let (mut ranks, value) = (Ranks::new(), [b'v'; VALUE_BYTES]);
        let (mut hits, mut reads) = (0, 0);
        for first in (0..REQUESTS).step_by(BATCH as usize) {
            let numbers = first..first + BATCH;
            let keys: Vec<_> = numbers
                .map(|number| format!("key:{}", load.key(number, ranks.draw())))
                .collect();
            let mut batch = pipe();
            for key in &keys {
                batch.cmd(read).arg(key);
            }
            let values: Vec<Option<Vec<u8>>> = batch.query(&mut self.connection)?;
            let found = values.iter().filter(|value| value.is_some()).count();
            if first >= WARM_UP {
                hits += found;
                reads += keys.len();
            }
            let missing = keys
                .iter()
                .zip(&values)
                .filter(|(_, value)| value.is_none());
            let missing: HashSet<_> = missing.map(|(key, _)| key).collect();
            let mut batch = pipe();
            for key in &missing {
                batch
                    .cmd(write)
                    .arg(key)
                    .arg(&value)
                    .arg("PX")
                    .arg(3_600_000)
                    .ignore();
            }
            if !missing.is_empty() {
                let () = batch.query(&mut self.connection)?;
            }
        }
        Ok(hits as f64 / reads as f64)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Random ranks of a Zipf distribution with the exponent 1, by a table of sums.
struct Ranks {
    sums: Vec<f64>,
    random: u64,
}

impl Ranks {
    fn new() -> Self {
        let mut sum = 0.0;
        let sums = (1..=KEYS).map(|rank| {
            sum += 1.0 / rank as f64;
            sum
        });
        Self {
            sums: sums.collect(),
            random: 88_172_645_463_325_252,
        }
    }

    /// Xorshift: Marsaglia, 2003.
    fn draw(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let share = (self.random >> 11) as f64 / (1_u64 << 53) as f64;
        let sum = share * self.sums[self.sums.len() - 1];
        self.sums.partition_point(|own| *own < sum) as u64
    }
}
