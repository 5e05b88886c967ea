//! The directory of one server.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use super::process::is_running;

/// Where servers live: below `target`, so that `cargo clean` removes them in any case. Cargo tells tests and benchmarks
/// where that is, and does not tell examples.
const HOMES: &str = match option_env!("CARGO_TARGET_TMPDIR") {
    Some(path) => path,
    None => concat!(env!("CARGO_MANIFEST_DIR"), "/target/tmp"),
};

const PREFIX: &str = "server-";

/// A new directory, removed on drop.
pub(super) struct Home(PathBuf);

impl Home {
    pub(super) fn create() -> Self {
        static FIRST: Once = Once::new();
        static CREATED: AtomicU32 = AtomicU32::new(0);
        FIRST.call_once(|| {
            fs::create_dir_all(HOMES).expect("cannot create the directory for servers");
            remove_orphans();
        });
        loop {
            let number = CREATED.fetch_add(1, Ordering::Relaxed);
            let path = Path::new(HOMES).join(format!("{PREFIX}{}-{number}", std::process::id()));
            match fs::create_dir(&path) {
                Ok(()) => return Self(path),
                // Left behind by a killed process that had our id.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => panic!("cannot create {}: {error}", path.display()),
            }
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    pub(super) fn config(&self) -> PathBuf {
        self.0.join("redis.conf")
    }

    pub(super) fn log(&self) -> PathBuf {
        self.0.join("log")
    }

    /// The log, for what goes wrong before the server has opened it itself.
    pub(super) fn log_file(&self) -> File {
        OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log())
            .expect("cannot open the log")
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // What cannot be removed now is removed as an orphan later: a drop must not panic over it.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Removes what killed test processes have left behind.
fn remove_orphans() {
    let entries = fs::read_dir(HOMES).expect("cannot read the directory of servers");
    for path in entries.flatten().map(|entry| entry.path()) {
        if creator_of(&path).is_some_and(|pid| !is_running(pid)) {
            // Another test process may be at it too.
            let _ = fs::remove_dir_all(path);
        }
    }
}

fn creator_of(home: &Path) -> Option<u32> {
    let name = home.file_name()?.to_str()?;
    let (pid, _number) = name.strip_prefix(PREFIX)?.split_once('-')?;
    pid.parse().ok()
}
