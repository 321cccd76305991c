//! What is advised.

use super::*;
use crate::cli::sweep::plot;

/// Rows from `(clients, threads, throughput)`; no threads: without MPS.
fn outcome(rows: &[(u32, Option<&str>, f64)]) -> Outcome {
    let row = |(clients, threads, throughput): &(u32, Option<&str>, f64)| {
        let way = threads.map_or(Way::Without, |threads| Way::Mps(threads.parse().unwrap()));
        let mut row = Row::of(
            Configuration {
                clients: *clients,
                way,
            },
            *clients,
        );
        row.add(*throughput, Some(7800));
        row
    };
    Outcome {
        unit: "ns/day".to_owned(),
        gpus: 1,
        gpu_memory_mib: Some(143_771),
        most_clients: Some(48),
        pbs: false,
        rows: rows.iter().map(row).collect(),
        notes: Vec::new(),
    }
}

#[test]
fn the_issues_own_table_gives_its_line() {
    let measured = outcome(&[
        (1, None, 1706.0),
        (1, Some("none"), 1667.0),
        (8, None, 1156.0),
        (8, Some("none"), 3723.0),
        (8, Some("auto"), 4590.0),
        (16, Some("auto"), 4600.0),
    ]);
    assert_eq!(
        measured.advice(),
        "8 clients, --mps --mps-threads=auto: 2.7 × one after another, 4.0 × the same 8 without MPS; memory allows 18"
    );
    let table = measured.text();
    assert!(
        table.contains("\n      8        1,156        3,723        4,590        7800 MiB\n"),
        "{table}"
    );
    assert!(
        table.contains("\n     16            -            -        4,600"),
        "{table}"
    );
}

#[test]
fn no_gain_no_figure_and_no_mps_are_said() {
    let flat = outcome(&[
        (1, None, 100.0),
        (1, Some("none"), 99.0),
        (4, Some("none"), 103.0),
    ]);
    assert!(
        flat.advice().starts_with("MPS brings this program nothing here"),
        "{}",
        flat.advice()
    );
    let mut failed = flat.clone();
    failed.rows.iter_mut().for_each(|row| row.throughput = None);
    assert!(
        failed.advice().starts_with("no client came to a figure"),
        "{}",
        failed.advice()
    );
    let alone = outcome(&[(1, Some("none"), 1.0), (1, Some("25"), 0.6)]);
    assert!(
        alone.advice().starts_with("one client alone"),
        "{}",
        alone.advice()
    );
    let without = outcome(&[(1, None, 1.0), (2, None, 1.0)]);
    assert!(
        without.advice().contains("submit it with --mps"),
        "{}",
        without.advice()
    );
}

#[test]
fn a_share_is_named_as_it_is_asked_for_and_more_clients_are_suggested_while_they_help() {
    let mut measured = outcome(&[
        (1, Some("none"), 10.0),
        (4, Some("none"), 20.0),
        (4, Some("100/n"), 30.0),
    ]);
    let line = "4 clients, --mps --mps-threads=25: 3.0 × one after another; memory allows 18; more may be better still (--clients 8)";
    assert_eq!(measured.advice(), line);
    measured.pbs = true;
    assert!(
        measured
            .advice()
            .starts_with("4 clients, MPS=true,MPS_THREADS=25: "),
        "{}",
        measured.advice()
    );
    // Two per cent are no reason for more clients, or for a share.
    let close = outcome(&[
        (1, Some("none"), 10.0),
        (2, Some("none"), 29.8),
        (2, Some("25"), 30.0),
        (4, Some("none"), 30.1),
    ]);
    assert!(
        close.advice().starts_with("2 clients, --mps: "),
        "{}",
        close.advice()
    );
}

#[test]
fn medians_and_figures_are_those_of_people() {
    let mut row = Row::of(
        Configuration {
            clients: 2,
            way: Way::Without,
        },
        2,
    );
    [5.0, 1.0, 3.0].into_iter().for_each(|run| row.add(run, None));
    assert_eq!(row.throughput, Some(3.0));
    row.add(4.0, None);
    assert_eq!(row.throughput, Some(3.5));
    let shown = [0.256, 12.34, 999.6, 4590.4, 1_234_567.0].map(figure);
    assert_eq!(shown, ["0.26", "12.3", "1,000", "4,590", "1,234,567"]);
}

#[test]
fn the_plot_has_a_line_and_a_name_for_each_column_and_json_brings_it_back() {
    let measured = outcome(&[
        (1, None, 10.0),
        (2, None, 10.0),
        (1, Some("none"), 10.0),
        (2, Some("none"), 19.0),
    ]);
    let drawn = plot::svg(&measured, "./prog <a> & b").unwrap();
    assert!(drawn.matches("<polyline").count() >= 2, "{drawn}");
    assert!(
        drawn.contains("without MPS") && drawn.contains("&lt;a&gt; &amp; b"),
        "{drawn}"
    );
    let again: Outcome = serde_json::from_str(&serde_json::to_string(&measured).unwrap()).unwrap();
    assert_eq!(plot::svg(&again, "./prog <a> & b").unwrap(), drawn);
    assert!(plot::svg(&outcome(&[(1, None, 1.0)]), "").is_ok());
    assert!(plot::svg(&outcome(&[]), "").is_ok());
}
