//! The server's `INFO`, from which the module also reads the program and the version of the server.

use crate::request::parse_int;
use redis_module::raw;
use std::ffi::{CStr, c_int};
use std::ptr;
use std::sync::OnceLock;

/// A section of the server's `INFO`.
pub(in crate::server) struct ServerInfo(*mut raw::RedisModuleServerInfoData);

impl ServerInfo {
    pub(in crate::server) fn read(section: &CStr) -> Self {
        // SAFETY: the name is NUL-terminated. The section was created without a context, so `drop` frees it.
        Self(unsafe { api!(RedisModule_GetServerInfo(ptr::null_mut(), section.as_ptr())) })
    }

    /// A number; 0 if the section has no such field.
    pub(in crate::server) fn number(&self, field: &CStr) -> u64 {
        let mut error: c_int = 0;
        // SAFETY: the section is alive, the name NUL-terminated.
        unsafe {
            api!(RedisModule_ServerInfoGetFieldUnsigned(
                self.0,
                field.as_ptr(),
                &mut error
            ))
        }
    }

    /// A text; empty if the section has no such field.
    pub(in crate::server) fn text(&self, field: &CStr) -> &[u8] {
        // SAFETY: as above; a field is NUL-terminated and lives as long as the section, or is null.
        unsafe {
            let text = api!(RedisModule_ServerInfoGetFieldC(self.0, field.as_ptr()));
            if text.is_null() {
                return b"";
            }
            CStr::from_ptr(text).to_bytes()
        }
    }
}

impl Drop for ServerInfo {
    fn drop(&mut self) {
        // SAFETY: the section was created without a context, and only this struct owns it.
        unsafe { api!(RedisModule_FreeServerInfo(ptr::null_mut(), self.0)) };
    }
}

/// The server's program and its version: major, minor, patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::server) enum Version {
    Redis(i64, i64, i64),
    Valkey(i64, i64, i64),
}

impl Version {
    /// The version of the server that has loaded the module.
    pub(in crate::server) fn running() -> Self {
        static RUNNING: OnceLock<Version> = OnceLock::new();
        *RUNNING.get_or_init(|| {
            let server = ServerInfo::read(c"server");
            Self::of(
                server.text(c"redis_version"),
                server.text(c"valkey_version"),
            )
        })
    }

    /// Reads the fields `redis_version` and `valkey_version`. Redis has no `valkey_version`; in `redis_version`, Valkey
    /// reports the version of Redis that it is compatible with.
    fn of(redis: &[u8], valkey: &[u8]) -> Self {
        let is_valkey = !valkey.is_empty();
        let text = if is_valkey { valkey } else { redis };
        let mut numbers = text.split(|byte| *byte == b'.').map(parse_int);
        let mut next = || numbers.next().flatten().unwrap_or(0);
        let (major, minor, patch) = (next(), next(), next());
        if is_valkey {
            Self::Valkey(major, minor, patch)
        } else {
            Self::Redis(major, minor, patch)
        }
    }

    pub(in crate::server) fn is_valkey(self) -> bool {
        matches!(self, Self::Valkey(..))
    }

    /// Whether the server is Redis of this version or a later one.
    pub(in crate::server) fn is_redis_since(self, since: (i64, i64)) -> bool {
        matches!(self, Self::Redis(major, minor, _) if (major, minor) >= since)
    }

    /// Whether the server is Valkey of this version or a later one.
    pub(in crate::server) fn is_valkey_since(self, since: (i64, i64)) -> bool {
        matches!(self, Self::Valkey(major, minor, _) if (major, minor) >= since)
    }

    /// Whether `MOVE` and `COPY ... DB` leave their client in the other database, if a module listens to keyspace events:
    /// <https://github.com/valkey-io/valkey/pull/4024>.
    pub(in crate::server) fn misplaces_clients(self) -> bool {
        match self {
            Self::Valkey(8, 1, patch) => (1..=8).contains(&patch),
            Self::Valkey(9, 0, patch) => patch <= 5,
            Self::Valkey(9, 1, patch) => patch <= 1,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Version;

    #[test]
    fn versions_are_read_and_compared() {
        let redis = |text: &str| Version::of(text.as_bytes(), b"");
        let valkey = |text: &str| Version::of(b"7.2.4", text.as_bytes());
        assert_eq!(redis("7.0.15"), Version::Redis(7, 0, 15));
        assert_eq!(redis(""), Version::Redis(0, 0, 0));
        assert_eq!(valkey("9.1.2"), Version::Valkey(9, 1, 2));
        assert!(redis("8.10.0").is_redis_since((8, 4)) && !redis("8.2.3").is_redis_since((8, 4)));
        assert!(!valkey("9.0.0").is_redis_since((7, 0)) && !redis("9.0.0").is_valkey());
        assert!(valkey("10.0.0").is_valkey_since((9, 0)));
        assert!(!valkey("8.1.9").is_valkey_since((9, 0)));
    }

    #[test]
    fn versions_that_misplace_clients_are_known() {
        for (version, does) in [
            ("8.0.5", false),
            ("8.1.0", false),
            ("8.1.1", true),
            ("8.1.8", true),
            ("8.1.9", false),
            ("8.1.10", false),
            ("9.0.0", true),
            ("9.0.6", false),
            ("9.1.0", true),
            ("9.1.2", false),
            ("9.2.0", false),
            ("10.0.0", false),
        ] {
            let version = Version::of(b"7.2.4", version.as_bytes());
            assert_eq!(version.misplaces_clients(), does, "{version:?}");
        }
        assert!(!Version::of(b"8.1.1", b"").misplaces_clients());
    }
}
