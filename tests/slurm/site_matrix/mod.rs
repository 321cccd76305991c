//! The site matrix: jobs of every kind on clusters of every kind, every pair of values of two factors in at least one cell.
//!
//! A cell runs the same job with MPS, without it on the same cluster, and without it where nobody has the plugin. What the
//! plain job had is the measure: same GPUs; who asked is under MPS of its own with its limits, or is told why not; who did not
//! ask sees no difference; a bystander is left alone; nothing stays behind.
//!
//! A cell is named by its factors (`site_matrix::SITE::REQUEST`), and words choose cells as in the other groups.

mod cover;
mod factors;
mod known;
mod oracle;
mod request;
mod run;
mod site;

use std::time::Instant;

use anyhow::{Result, anyhow};
use tests::beside::Work;

use self::factors::{SITE, levels, values};
use self::known::KNOWN;
use self::run::Site;
use crate::runner::Tally;

/// Name before the first `::`.
const NAME: &str = "site_matrix";

/// The values of a cell's factors.
type Row = Vec<Option<usize>>;

/// The sites, each with its cells by name.
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

/// The cells' names.
pub fn names() -> impl Iterator<Item = String> {
    let sites = cells().into_iter();
    sites.flat_map(|(_, cells)| cells).map(|(name, _)| name)
}

/// The manual's list of settings says what the sites of this matrix are made of, and nothing else.
const MANUAL: &str = include_str!("../../../packaging/man/mpsd.8");
const HEADING: &str = "SLURM'S SETTINGS";

fn manual(words: &[String], tally: &Tally) {
    let name = format!("{NAME}::the_manual_tells_every_setting");
    tally.there_are(1);
    if words.is_empty() || words.iter().any(|word| name.contains(word.as_str())) {
        let wrong = factors::untold(MANUAL, HEADING);
        let outcome = match wrong.is_empty() {
            true => Ok(()),
            false => Err(anyhow!("mpsd(8): {}", wrong.join("; "))),
        };
        tally.note(&name, Instant::now(), outcome, "");
    }
}

/// The sites of the cells whose names hold one of `words`.
pub fn beds<'a>(words: &[String], tally: &'a Tally) -> Vec<Work<'a>> {
    manual(words, tally);
    let mut beds = Vec::new();
    for (site, mut cells) in cells() {
        tally.there_are(cells.len());
        cells.retain(|(name, _)| words.is_empty() || words.iter().any(|word| name.contains(word.as_str())));
        // The bystander leaves once.
        cells.sort_by_key(|(_, row)| factors::is(row, "node", "alone-on-node"));
        match site::needs(&site) {
            _ if cells.is_empty() => {}
            Some(why) => println!("skipped: slurm {NAME}::{}: {why}", cells[0].0),
            None => beds.push(Work {
                claims: site::options(&site).claims(),
                run: Box::new(move || tally.of_bed(&site_name(&site), || run_site(&site, &cells, tally))),
            }),
        }
    }
    beds
}

fn site_name(choice: &Row) -> String {
    let chosen: Vec<usize> = choice.iter().copied().flatten().collect();
    format!("{NAME}::{}", values(&chosen, 0))
}

fn run_site(choice: &Row, cells: &[(String, Row)], tally: &Tally) {
    let started = Instant::now();
    let mut site = match Site::start(choice) {
        Ok(site) => site,
        Err(error) => {
            for (name, _) in cells {
                let why = anyhow!("the site does not come up: {error:#}");
                tally.note(name, started, Err(why), "");
            }
            return;
        }
    };
    println!(
        "{}: up after {:.1} s",
        site_name(choice),
        started.elapsed().as_secs_f64()
    );
    for (name, row) in cells {
        let started = Instant::now();
        let outcome = site
            .cell(choice, row)
            .and_then(|troubles| weigh(name, row, troubles));
        let said = match outcome {
            Ok(()) => String::new(),
            Err(_) => site.logs(),
        };
        tally.note(name, started, outcome, &said);
    }
    let started = Instant::now();
    let name = format!("{}::the_site_leaves_nothing", site_name(choice));
    tally.note(&name, started, site.end(), "");
}

/// A cell's troubles are a failure, unless it is known for each of them; a known gap without its troubles is one too.
fn weigh(name: &str, row: &[Option<usize>], troubles: Vec<String>) -> Result<()> {
    let gaps: Vec<_> = KNOWN.iter().filter(|known| (known.cells)(row)).collect();
    for gap in gaps.iter().filter(|gap| gap.always) {
        if !troubles.iter().any(|trouble| trouble.contains(gap.sign)) {
            return Err(anyhow!("no longer a gap, its line in KNOWN goes: {}", gap.why));
        }
    }
    let explained = |trouble: &String| gaps.iter().any(|gap| trouble.contains(gap.sign));
    let (known, new): (Vec<_>, Vec<_>) = troubles.into_iter().partition(explained);
    for trouble in &known {
        println!("known gap: {name}: {trouble}");
    }
    match new[..] {
        [] => Ok(()),
        _ => Err(anyhow!("{}", new.join("\n"))),
    }
}
