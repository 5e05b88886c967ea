//! The memory of the families in `INFO sluice`.

use super::support::{Lines, SOON, eventually, server_and_client};

#[test]
fn the_memory_of_families_is_near_what_memory_usage_reports() {
    let (server, mut client) = server_and_client();
    for index in 0..300 {
        let long = "x".repeat(1 + index * 7 % 500);
        client.must(&format!("SELECT {}", index % 3));
        client.must(&format!("LOCK.ACQUIRE lock-{index} {long} PX 600000"));
        client.must(&format!("SEM.ACQUIRE sem-{index} {long} LIMIT 5 PX 600000"));
        client.must(&format!("STOCK.SET stock-{index} 100"));
        client.must(&format!("STOCK.DEDUCT stock-{index} 1 ORDER {long}"));
        client.must(&format!("RATE.GCRA rate-{index} 5 1 600000"));
        client.must(&format!(
            "ONCE.BEGIN once-{index} LEASE 600000 FINGERPRINT f{index}"
        ));
        client.must(&format!("DELAY.SET delay-{index} STREAM s-{index}"));
        client.must(&format!(
            "DELAY.ADD delay-{index} id PX 600000 VALUES f {long}"
        ));
        client.must(&format!("SET other-{index} {long}"));
    }
    let families = [
        ("lock", &["lock", "sem"][..]),
        ("stock", &["stock"]),
        ("rate", &["rate"]),
        ("once", &["once"]),
        ("delay", &["delay"]),
    ];
    for (family, names) in families {
        let keys = server.info_int(&format!("sluice_memory_{family}_keys"));
        assert_eq!(keys, 300 * names.len() as i64, "{family}");
        let mut usage = 0;
        for index in 0..300 {
            client.must(&format!("SELECT {}", index % 3));
            for name in names {
                usage += client.must(&format!("MEMORY USAGE {name}-{index}")).int();
            }
        }
        // Some servers count a little more or less around a key.
        eventually(SOON, || {
            let bytes = server.info_int(&format!("sluice_memory_{family}_bytes"));
            (bytes - usage).abs() * 10 < usage
        });
    }
    client.must("FLUSHALL");
    for (family, _) in families {
        // Some servers free the values in the background.
        for field in ["keys", "bytes"] {
            let field = format!("sluice_memory_{family}_{field}");
            eventually(SOON, || server.info_int(&field) == 0);
        }
    }
}
