//! Static partitions: each rank has its own. An older driver refuses, and the refusal names it and
//! the first driver with them.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;
use tests::child::{self, Ran};

use crate::job::Job;
use crate::result::Section;
use crate::site::{self, Gpu, Place, Run};

const JOB: &str = "4713.srv";
const ACCOUNT: &str = "MPS=true,MPS_SMS=8:16";
const RANKS: [(u32, u64); 2] = [(0, 8), (1, 16)];
const FIRST: u32 = 590;

pub fn run(section: &mut Section, run: &Run) -> Result<()> {
    let (place, gpu) = (&run.place, run.gpu());
    section.fact("request", ACCOUNT);
    let job = Job::named(place, gpu, JOB)?;
    let branch = gpu
        .driver
        .split('.')
        .next()
        .and_then(|own| own.parse().ok());
    if branch.unwrap_or(0) < FIRST {
        refused(section, gpu, &job)?;
    } else {
        job.begin(section, "", ACCOUNT)?;
        granted(section, place, &job)?;
    }
    job.end(section, "")?;
    Ok(())
}

/// Each rank has its own partition's multiprocessors, and a rank without a partition does not run.
fn granted(section: &mut Section, place: &Place, job: &Job<'_>) -> Result<()> {
    for (rank, sms) in RANKS {
        let ran = client(place, job, rank)?;
        let record: Value = serde_json::from_str(&ran.stdout).with_context(|| ran.story())?;
        let has = record["gpus"][0]["sms"].as_u64();
        // The last partition of a GPU may also have the multiprocessors that make up no chunk.
        let enough = has.is_some_and(|has| has >= sms);
        let name = format!("rank {rank} has {sms} multiprocessors");
        section.check(name, enough, record.to_string());
        let under = record["under_mps"].as_bool();
        section.equal(format!("rank {rank} is under MPS"), &under, &Some(true));
    }
    let beyond = client(place, job, 2)?;
    let stopped = beyond.code == Some(1);
    section.check(
        "a rank without a partition does not run",
        stopped,
        beyond.story(),
    );
    let control = site::program("nvidia-cuda-mps-control")?;
    let mut list = place.as_user(&control, &job.environment()?);
    let listed = child::run(&mut list, "lspart\n", Duration::from_secs(10))?;
    section.fact("lspart", listed.stdout);
    Ok(())
}

fn refused(section: &mut Section, gpu: &Gpu, job: &Job<'_>) -> Result<()> {
    let why = format!("static partitions: driver {} has none", gpu.driver);
    section.fact("not verified here", why);
    let prologue = job.prologue(ACCOUNT)?;
    let told = prologue.story();
    let named = told.contains(&gpu.driver) && told.contains(&format!("driver {FIRST}"));
    let name = "the job is refused, by the driver here and the first that has them";
    section.check(name, prologue.code == Some(1) && named, told);
    Ok(())
}

fn client(place: &Place, job: &Job<'_>, rank: u32) -> Result<Ran> {
    let mut env = site::base_env();
    env.insert("OMPI_COMM_WORLD_LOCAL_RANK".into(), rank.to_string());
    let mut command = job.exec(env)?;
    command.arg(place.staged("mps-probe")?).arg("--json");
    child::run(&mut command, "", Duration::from_secs(60))
}
