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
    ///
    /// The manifest names it. After a rewrite the server removes the files of before in its spare time, so that there may be
    /// two with this part.
    #[track_caller]
    pub fn aof_file(&self, part: &str) -> PathBuf {
        let folder = self.dir().join("appendonlydir");
        let manifest = fs::read_dir(&folder)
            .expect("there is an append-only directory")
            .flatten()
            .map(|entry| entry.path())
            .find(|path| path.extension().is_some_and(|end| end == "manifest"))
            .expect("there is a manifest");
        // file <name> seq <number> type <b: base, i: incremental, h: history>
        let manifest = fs::read_to_string(manifest).expect("the manifest");
        let mut names = manifest
            .lines()
            .filter(|line| !line.contains(" type h"))
            .filter_map(|line| line.split(' ').nth(1));
        let name = names.rfind(|name| name.contains(part));
        folder.join(name.unwrap_or_else(|| panic!("there is no {part} file")))
    }
}
