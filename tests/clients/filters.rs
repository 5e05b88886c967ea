//! Filters as client libraries use them: redis-py's `bf` and `cf` helpers work unchanged.
//!
//! The `redis` crate has no helpers for filters (1.2 knows only their types' names), so its commands are made by hand.

use crate::support::Server;
use crate::{python, run};

#[track_caller]
fn redis_py(protocol: &str) {
    let server = Server::start();
    let arguments = [server.port().to_string(), protocol.into()];
    run(&python(), "filters.py", &arguments);
}

#[test]
fn every_helper_of_redis_py_works_in_resp2() {
    redis_py("2");
}

#[test]
fn every_helper_of_redis_py_works_in_resp3() {
    redis_py("3");
}

#[test]
fn replies_convert_to_the_types_of_the_redis_crate() {
    let server = Server::start();
    for protocol in ["", "?protocol=resp3"] {
        let url = format!("redis://127.0.0.1:{}/{protocol}", server.port());
        let client = redis::Client::open(url).expect("a URL");
        let mut connection = client.get_connection().expect("a connection");
        let ask = |words: &str| {
            let mut words = words.split(' ');
            let mut command = redis::cmd(words.next().expect("a name"));
            words.for_each(|word| {
                command.arg(word);
            });
            command
        };
        let () = ask("FLUSHALL").query(&mut connection).expect("OK");
        let () = ask("BF.RESERVE k 0.01 100")
            .query(&mut connection)
            .expect("OK");
        let mut truth = |line| ask(line).query::<bool>(&mut connection).expect(line);
        assert!(truth("BF.ADD k a") && !truth("BF.ADD k a"));
        assert!(truth("BF.EXISTS k a") && !truth("BF.EXISTS k b"));
        assert!(truth("CF.ADD c a") && truth("CF.EXISTS c a") && truth("CF.DEL c a"));
        let mut truths = |line| ask(line).query::<Vec<bool>>(&mut connection).expect(line);
        assert_eq!(truths("BF.MADD k a b"), [false, true]);
        assert_eq!(truths("BF.MEXISTS k a b z"), [true, true, false]);
        assert_eq!(truths("CF.INSERT c ITEMS a b"), [true, true]);
        let numbers: Vec<i64> = ask("CF.INSERTNX c ITEMS a x")
            .query(&mut connection)
            .expect("integers");
        assert_eq!(numbers, [0, 1]);
        let info: std::collections::HashMap<String, Option<u64>> =
            ask("BF.INFO k").query(&mut connection).expect("a map");
        assert_eq!(info["Number of items inserted"], Some(2));
        assert_eq!(info.len(), 5);
        let (next, data): (u64, Vec<u8>) = ask("BF.SCANDUMP k 0")
            .query(&mut connection)
            .expect("a chunk");
        let () = redis::cmd("BF.LOADCHUNK")
            .arg("copy")
            .arg(next)
            .arg(data)
            .query(&mut connection)
            .expect("OK");
        let error = ask("BF.INFO none")
            .query::<redis::Value>(&mut connection)
            .expect_err("no filter");
        assert_eq!(error.detail(), Some("not found"));
    }
}
