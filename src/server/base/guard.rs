//! The guard that every entry from the server passes: a panic that reached the server would end its process.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `work`; a panic in it is logged (by the hook of `handles::log`) and becomes `otherwise`.
pub(in crate::server) fn guard<T>(otherwise: T, work: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(otherwise)
}

#[cfg(test)]
mod tests {
    use super::guard;
    use std::fs;
    use std::path::{Path, PathBuf};

    #[test]
    fn a_panic_becomes_the_other_value() {
        assert_eq!(guard(1, || panic!("on purpose")), 1);
        assert_eq!(guard(1, || 2), 2);
    }

    /// Every function that the server calls passes the guard. A callback without a body has nothing to guard.
    #[test]
    fn every_callback_passes_the_guard() {
        let mut callbacks = 0;
        for file in sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/server")) {
            let text = fs::read_to_string(&file).expect("a source is read");
            let keyword = concat!("unsafe extern \"C\"", " fn ");
            for (start, _) in text.match_indices(keyword) {
                let text = &text[start + keyword.len()..];
                let name = text.split(['<', '(']).next().unwrap_or_default();
                let body = text.split("\n}\n").next().unwrap_or_default();
                let first_line = text.lines().next().unwrap_or_default();
                let is_empty = first_line.ends_with("{}");
                assert!(
                    is_empty || body.contains("guard("),
                    "{name} in {} is not guarded",
                    file.display()
                );
                callbacks += 1;
            }
        }
        assert!(callbacks > 40, "found {callbacks}");
    }

    fn sources(folder: &Path) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for entry in fs::read_dir(folder).expect("a folder is read") {
            let path = entry.expect("an entry is read").path();
            if path.is_dir() {
                found.extend(sources(&path));
            } else {
                found.push(path);
            }
        }
        found
    }
}
