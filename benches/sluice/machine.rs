//! The machine, the server and the date of a measurement.

use std::fs;
use std::process::Command;

use crate::support::Server;

/// The rows of a table: a property and its value.
pub(crate) fn describe() -> Vec<(&'static str, String)> {
    vec![
        ("date", output("date", &["-u", "+%Y-%m-%d"])),
        ("processor", processor()),
        ("memory", memory()),
        ("kernel", line_of("/proc/sys/kernel/osrelease")),
        ("server", server()),
        ("Sluice", sluice()),
        ("compiler", output("rustc", &["--version"])),
    ]
}

fn processor() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1))
        .unwrap_or("unknown");
    let cores = crate::cpu::cores().len();
    let kind = match info.contains(" hypervisor") {
        true => "virtual cores",
        false => "cores",
    };
    format!("{model}, {cores} {kind}")
}

fn memory() -> String {
    let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = info
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))
        .and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<f64>().ok());
    total.map_or_else(
        || "unknown".into(),
        |kib| format!("{:.0} GiB", kib / (1024.0 * 1024.0)),
    )
}

fn server() -> String {
    let server = Server::builder().no_module().start();
    let field = |name: &str| server.info(name).map(|text| text.trim().to_owned());
    match (field("valkey_version"), field("redis_version")) {
        (Some(version), _) => format!("Valkey {version}"),
        (None, Some(version)) => format!("Redis {version}"),
        (None, None) => "unknown".into(),
    }
}

fn sluice() -> String {
    let version = env!("CARGO_PKG_VERSION");
    match output("git", &["describe", "--always", "--dirty"]).as_str() {
        "unknown" => version.into(),
        commit => format!("{version} ({commit})"),
    }
}

fn line_of(path: &str) -> String {
    fs::read_to_string(path).map_or_else(|_| "unknown".into(), |text| text.trim().to_owned())
}

fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output();
    match output {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        }
        _ => "unknown".into(),
    }
}
