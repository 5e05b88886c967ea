//! What the benchmark's page is made with: tables, scales and verdicts, without the measuring.

#[path = "../benches/sluice/report/scale.rs"]
mod scale;
#[path = "../benches/sluice/report/table.rs"]
mod table;
#[path = "../benches/sluice/report/verdict.rs"]
mod verdict;

use scale::Scale;
use table::{Align, Table};
use verdict::verdict;

#[test]
fn a_table_is_markdown_whose_columns_are_aligned() {
    let mut table = Table::new([("", Align::Left), ("us", Align::Right)]);
    assert!(table.is_empty());
    table.row(["a × b", "12.00"]);
    table.row(["short"]);
    let expected = "\
|       |    us |
| ----- | ----: |
| a × b | 12.00 |
| short |       |
";
    assert_eq!(table.render(), expected);
    assert!(!table.is_empty());
}

#[test]
fn a_bar_is_met_by_what_the_reader_sees() {
    assert_eq!(verdict(1.504, Some(1.5), "slow"), "met");
    assert_eq!(verdict(1.506, Some(1.5), "slow"), "**not met**: slow");
    assert_eq!(verdict(2.0, Some(1.5), ""), "**not met**");
    assert_eq!(verdict(2.0, None, "look there"), "look there");
}

#[test]
fn a_linear_scale_begins_at_nothing_and_has_round_ticks() {
    let scale = Scale::linear(9.68, (100, 200));
    assert_eq!(scale.place(0.0), 100);
    assert_eq!(scale.place(4.84), 150);
    assert_eq!(scale.place(9.68), 200);
    assert_eq!(scale.ticks(), [0.0, 2.0, 4.0, 6.0, 8.0]);
}

#[test]
fn a_scale_upwards_has_its_greatest_number_on_top() {
    let scale = Scale::linear(2.0, (200, 100));
    assert_eq!(scale.place(2.0), 100);
    assert_eq!(scale.place(1.0), 150);
}

#[test]
fn a_logarithmic_scale_has_whole_decades_around_its_numbers() {
    let scale = Scale::log(0.03, 40.0, (0, 400));
    assert_eq!(scale.ticks(), [0.01, 0.1, 1.0, 10.0, 100.0]);
    assert_eq!(scale.place(1.0), 200);
    assert_eq!(scale.place(10.0), 300);
    // Even if they are all the same.
    assert_eq!(Scale::log(1.0, 1.0, (0, 400)).place(10.0), 400);
}

#[test]
fn what_is_outside_of_a_scale_is_put_on_its_edge() {
    let scale = Scale::log(1.0, 100.0, (0, 200));
    assert_eq!(scale.place(0.0), 0);
    assert_eq!(scale.place(1e9), 200);
}
