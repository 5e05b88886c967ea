//! A server's files: written, rewritten, found, and read again after a crash.

use std::fs;
use std::path::PathBuf;

use super::server::Server;
use super::talk::SOON;
use super::wait::eventually;

impl Server {
    /// A crash, and the start after it: what the files have is what is left.
    #[track_caller]
    pub fn crash(&self) {
        self.kill9();
        self.restart();
    }

    /// Writes the RDB file from a process of its own, and waits for it.
    #[track_caller]
    pub fn save_in_background(&self) {
        self.command(["BGSAVE"]);
        eventually(SOON, || self.info_int("rdb_bgsave_in_progress") == 0);
        let status = self.info("rdb_last_bgsave_status");
        assert_eq!(status.as_deref(), Some("ok"));
    }

    /// Rewrites the append-only file.
    #[track_caller]
    pub fn rewrite_aof(&self) {
        self.await_rewrite(); // a replica rewrites its file after a full transfer
        self.command(["BGREWRITEAOF"]);
        self.await_rewrite();
    }

    /// Waits until no append-only file is being rewritten, and panics if the last one failed.
    #[track_caller]
    pub fn await_rewrite(&self) {
        eventually(SOON, || {
            self.info_int("aof_rewrite_in_progress") == 0
                && self.info_int("aof_rewrite_scheduled") == 0
        });
        let status = self.info("aof_last_bgrewrite_status");
        assert_eq!(status.as_deref(), Some("ok"));
    }

    /// The file of the append-only directory whose name has this part: `.base.` or `.incr.`.
    #[track_caller]
    pub fn aof_file(&self, part: &str) -> PathBuf {
        let entries = fs::read_dir(self.dir().join("appendonlydir"));
        let mut paths = entries
            .expect("there is an append-only directory")
            .flatten()
            .map(|entry| entry.path());
        paths
            .find(|path| path.to_string_lossy().contains(part))
            .unwrap_or_else(|| panic!("there is no {part} file"))
    }
}
