//! The files in `monitoring/`: each metric that the rules and the dashboard name exists in `INFO sluice` or in the rules.
//! `make monitoring-test` runs them with Prometheus.

use super::support::server_and_client;
use std::collections::BTreeSet;

const SCRIPT: &str = include_str!("../../monitoring/sluice.lua");
const RULES: &str = include_str!("../../monitoring/sluice.rules.yml");
const TESTS: &str = include_str!("../../monitoring/sluice.rules.test.yml");
const DASHBOARD: &str = include_str!("../../monitoring/grafana/sluice.json");

/// The values of a label in a text, such as `key="..."`. In JSON, the quotes have backslashes.
fn values_of(text: &str, label: &str) -> BTreeSet<String> {
    let text = text.replace("\\\"", "\"");
    let starts = [format!("{label}=\""), format!("{label}=~\"")];
    let mut values = BTreeSet::new();
    for start in &starts {
        let rests = text.split(start.as_str()).skip(1);
        values.extend(rests.filter_map(|rest| Some(rest.split('"').next()?.to_owned())));
    }
    values
}

/// The names that a value means: `cache_(hits|nulls)` is two names. None for a general pattern.
fn names_of(value: &str) -> Vec<String> {
    if value.contains(".+") || value.contains('$') {
        return Vec::new();
    }
    match value.split_once('(') {
        Some((head, rest)) => {
            let choices = rest.trim_end_matches(')').split('|');
            choices.map(|choice| format!("{head}{choice}")).collect()
        }
        None => vec![value.to_owned()],
    }
}

#[test]
fn each_metric_of_the_rules_and_the_dashboard_exists() {
    let (_server, mut client) = server_and_client();
    let exported = client.call(["EVAL", SCRIPT, "0"]);
    let pairs: Vec<_> = exported.array().chunks(2).collect();
    let keys: BTreeSet<String> = pairs.iter().map(|pair| pair[0].text().to_owned()).collect();
    assert_eq!(keys.len(), pairs.len(), "a name is exported twice");
    for pair in &pairs {
        pair[1].text().parse::<f64>().expect("a number");
    }
    // Every field of INFO is exported, except the version.
    let info = client.call(["INFO", "sluice"]);
    for line in info
        .text()
        .lines()
        .filter(|line| line.starts_with("sluice_"))
    {
        let (name, value) = line.split_once(':').expect("a name and a value");
        let is_exported = match name {
            "sluice_version" => true,
            "sluice_families" => value
                .split(',')
                .all(|family| keys.contains(&format!("sluice_family_{family}"))),
            _ => keys.contains(name) || keys.contains(&format!("{name}_count")),
        };
        assert!(is_exported, "{line}");
    }

    let mut count = 0;
    let mut check = |value: &str, prefix: &str, suffix: &str| {
        for name in names_of(value) {
            let key = format!("{prefix}{name}{suffix}");
            assert!(keys.contains(&key), "{key} is not in INFO sluice");
            count += 1;
        }
    };
    for text in [RULES, TESTS, DASHBOARD] {
        values_of(text, "key")
            .iter()
            .for_each(|key| check(key, "", ""));
        values_of(text, "event")
            .iter()
            .for_each(|event| check(event, "sluice_", ""));
        values_of(text, "time")
            .iter()
            .for_each(|time| check(time, "sluice_times_", "_usec_sum"));
    }
    assert!(count > 60, "{count}");

    let recorded: BTreeSet<&str> = RULES
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- record: "))
        .collect();
    for text in [RULES, DASHBOARD] {
        for rest in text.split("sluice:").skip(1) {
            let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'));
            let name = format!("sluice:{}", &rest[..end.unwrap_or(rest.len())]);
            assert!(recorded.contains(name.as_str()), "{name} is not recorded");
        }
    }
}
