//! The site matrix: jobs of every kind on clusters of every kind. Every pair of values of two
//! factors is in at least one cell.
//!
//! A cell runs the same job with MPS, without it on the same cluster, and without it on nodes
//! without the plugin. The plain job is the measure: the GPUs are the same. A job that asked is
//! under its own MPS with its limits, or is told why not. A job that did not ask sees no
//! difference, a bystander is left alone, and nothing stays behind.
//!
//! A cell's name is its factors (`site_matrix::SITE::REQUEST`), and words choose cells as in the
//! other groups.

mod cover;
mod factors;
mod oracle;
mod request;
mod run;
mod same;
mod site;

use std::time::Instant;

use anyhow::{Result, anyhow};
use tests::beside::Work;

use self::factors::{SITE, levels, values};
use self::run::Site;
use crate::runner::Tally;
use ::tests::slurm::is_chosen;

const NAME: &str = "site_matrix";

type Row = Vec<Option<usize>>;

fn cells() -> Vec<(Row, Vec<(String, Row)>)> {
    let levels = levels();
    let sites = cover::cover(&levels[..SITE], &[Vec::new()]);
    let rows = cover::cover(&levels, &sites);
    let some = |row: &[usize]| row.iter().copied().map(Some).collect();
    let of_site = |site: &Vec<usize>| {
        let own = rows.iter().filter(|row| row.starts_with(site));
        let named = own.map(|row| {
            let (site, request) = row.split_at(SITE);
            let name = format!("{NAME}::{}::{}", values(site, 0), values(request, SITE));
            (name, some(row))
        });
        (some(site), named.collect())
    };
    sites.iter().map(of_site).collect()
}

pub fn names() -> impl Iterator<Item = String> {
    let sites = cells().into_iter();
    sites.flat_map(|(_, cells)| cells).map(|(name, _)| name)
}

/// Whether the name of a cell may have the word. To make the cells takes 14 s, in a virtual machine
/// minutes.
fn may_have(word: &str) -> bool {
    let before = word.split_once("::").map_or("", |(before, _)| before);
    let last = before.rsplit(',').next().unwrap_or_default();
    let mut parts = word.split([':', ',']);
    let is_in_one =
        |part: &str| NAME.contains(part) || factors::all_values().any(|value| value.contains(part));
    (NAME.ends_with(last) || factors::ends_a_site(last)) && parts.all(is_in_one)
}

pub fn beds<'a>(words: &[String], tally: &'a Tally) -> Vec<Work<'a>> {
    let mut beds = Vec::new();
    if !words.is_empty() && !words.iter().any(|word| may_have(word)) {
        return beds;
    }
    for (site, mut cells) in cells() {
        tally.there_are(cells.len());
        cells.retain(|(name, _)| is_chosen(words, name));
        // The bystander leaves once.
        cells.sort_by_key(|(_, row)| factors::is(row, "node", "alone-on-node"));
        match site::needs(&site) {
            _ if cells.is_empty() => {}
            Some(why) => println!("skipped: slurm {NAME}::{}: {why}", cells[0].0),
            None => beds.push(Work {
                claims: site::options(&site).claims(),
                run: Box::new(move || {
                    let chosen: Vec<usize> = site.iter().copied().flatten().collect();
                    let name = format!("{NAME}::{}", values(&chosen, 0));
                    tally.of_bed(&name, || run_site(&name, &site, &cells, tally));
                }),
            }),
        }
    }
    beds
}

fn run_site(site_name: &str, choice: &Row, cells: &[(String, Row)], tally: &Tally) -> Result<()> {
    let started = Instant::now();
    let mut site = Site::start(choice)?;
    println!(
        "{site_name}: up after {:.1} s",
        started.elapsed().as_secs_f64()
    );
    for (name, row) in cells {
        let started = Instant::now();
        let outcome = site
            .cell(choice, row)
            .and_then(|troubles| match troubles[..] {
                [] => Ok(()),
                _ => Err(anyhow!("{}", troubles.join("\n"))),
            });
        let said = outcome
            .as_ref()
            .map_or_else(|_| site.logs(), |()| String::new());
        tally.note(name, started, outcome, &said);
    }
    let (started, name) = (
        Instant::now(),
        format!("{site_name}::the_site_leaves_nothing"),
    );
    tally.note(&name, started, site.end(), "");
    Ok(())
}
