//! What a case does beyond the steps of the table: it asks NVIDIA's daemon and `mpsctl`, and judges
//! their answers.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use ::tests::child::{self, Running};
use anyhow::{Context, Result};

use crate::clients::{self, CLIENTS, Limits};
use crate::job::{Job, PLAIN};
use crate::result::Section;
use crate::runner::{PROGRAM, Scene, Work};
use crate::site;

/// The most clients of a GPU with driver 580.
pub const MOST: usize = 48;

// The whole job.

/// The limits of the job that the table begins, as the daemon says them and as clients find them.
pub fn limits(scene: &mut Scene<'_>) -> Result<()> {
    let run = scene.run;
    let (limits, gpu) = (&run.limits, &run.gpu().uuid);
    let job = scene.job("4711.srv")?;
    let section = &mut *scene.section;
    section.fact("task_environment", format!("{:?}", job.environment()?));
    let threads = job
        .ask("get_default_active_thread_percentage")?
        .parse()
        .ok();
    section.equal(
        "read back: thread percentage",
        &threads,
        &Some(limits.percent),
    );
    let memory = job.ask(&format!("get_default_device_pinned_mem_limit {gpu}"))?;
    let expected = Some(limits.memory_mib);
    section.equal("read back: memory limit", &mebibytes(&memory), &expected);
    let server = job.ask("get_server_list")?;
    let status = job.ask(&format!("get_server_status {server}"))?;
    section.equal("read back: server status", &status.as_str(), &"ACTIVE");
    idle(section, &job)?;
    clients::at_once(section, &run.place, &job, limits)
}

/// The cost of an idle `mpsd`: wake-ups in two seconds, and its share of memory as the kernel
/// counts it.
fn idle(section: &mut Section, job: &Job<'_>) -> Result<()> {
    let pid = job.mpsd_pid()?;
    let number = |file: &str, name: &str| -> Result<u64> {
        let text = fs::read_to_string(format!("/proc/{pid}/{file}"))?;
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let number = line.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
        number.with_context(|| format!("no '{name}' in '/proc/{pid}/{file}'"))
    };
    let turns = || number("status", "voluntary_ctxt_switches:");
    // Time for its work after the questions by hand.
    child::pause(Duration::from_millis(500))?;
    let before = turns()?;
    child::pause(Duration::from_secs(2))?;
    section.equal("wake-ups of mpsd in 2 s", &turns()?, &before);
    section.fact("mpsd_rss_kib", number("status", "VmRSS:")? as i64);
    let kib = number("smaps_rollup", "Pss:")? as f64;
    section.at_most("KiB that mpsd takes", kib, 3.0 * 1024.0);
    Ok(())
}

/// The daemon's answer about a memory limit (`3G`, `4096M`) in MiB.
fn mebibytes(text: &str) -> Option<u64> {
    let (number, unit) = text.split_at(text.len().checked_sub(1)?);
    let number: u64 = number.parse().ok()?;
    match unit {
        "G" => Some(number << 10),
        "M" => Some(number),
        "K" => Some(number >> 10),
        _ => None,
    }
}

/// The same job by `srun`. The first of its runs also brings the programs into the page cache.
pub fn by_srun(scene: &mut Scene<'_>) -> Result<()> {
    const RUNS: usize = 3;
    let (limits, (bed, user)) = (&scene.run.limits, scene.bed()?);
    let probe = scene.run.place.staged("mps-probe")?.display().to_string();
    let line = format!("--gres=gpu:1 --mps --mps-threads=25 --mps-mem=4G -n{CLIENTS} {probe}");
    let options = limits.probe_options();
    let words = line.split(' ').chain(options.iter().map(String::as_str));
    let words: Vec<&str> = words.collect();
    for number in 0..RUNS {
        let ran = bed.srun(&user, &words, PROGRAM)?;
        scene.section.fact(&format!("srun_{number}_ms"), ran.ms());
        scene.section.good(format!("srun {number}"), &ran);
        let clients = clients::from_lines(&ran.stdout, ran.code);
        let name = format!("srun {number}: a report of each task");
        scene.section.equal(name, &clients.len(), &CLIENTS);
        clients::judge(scene.section, &clients, limits);
    }
    Ok(())
}

/// The contract suite against NVIDIA's control daemon, with the same tests as against the double:
/// the result of each belief.
pub fn contract(scene: &mut Scene<'_>) -> Result<()> {
    let place = &scene.run.place;
    let mut command = Command::new(place.staged("contract")?);
    command.current_dir("/").env("MPS_SUBJECT", "nvidia");
    command.args(["--test-threads=1", "--nocapture"]);
    if let Ok(control) = site::program("nvidia-cuda-mps-control") {
        command.env("MPS_CONTROL", control);
    }
    command.env("MPS_PROBE", place.bin("mps-probe"));
    command.env("MPS_LOAD", place.bin("cuda-load"));
    command.env("MPS_USER", &place.user.name);
    let ran = child::run(&mut command, "", PROGRAM * 7)?;
    let mut lines = ran.stdout.lines();
    let summary = lines.rfind(|line| line.starts_with("test result:"));
    let summary = summary.unwrap_or("no summary");
    let section = &mut *scene.section;
    section.fact("summary", summary);
    section.fact("seconds", (ran.wall.as_secs_f64() * 10.0).round() / 10.0);
    section.fact("output", ran.said());
    let good = ran.code == Some(0) && summary.contains(": ok.");
    section.check("contract suite with MPS_SUBJECT=nvidia", good, summary);
    Ok(())
}

// MPS on MIG devices as documented (docs/facts/mps-control.md#mig). It makes and removes no MIG
// device and changes no mode.

pub fn mig_devices(list: &str) -> Vec<String> {
    let uuid = |line: &str| {
        let (_, rest) = line.trim().strip_prefix("MIG ")?.split_once("(UUID: ")?;
        Some(rest.trim_end_matches(')').to_owned())
    };
    list.lines().filter_map(uuid).collect()
}

/// One job on a MIG device, and one on two; without MIG devices it says that all of this stays
/// unverified.
pub fn mig(scene: &mut Scene<'_>) -> Result<()> {
    let devices = mig_devices(&site::smi(&["-L"])?);
    scene.section.fact("mig_devices", devices.len() as i64);
    let Some(first) = devices.first() else {
        let why = "no GPU of this machine has MIG devices: MPS on MIG devices stays documented, not verified";
        scene.section.fact("left_out", why);
        return Ok(());
    };
    let bare = clients::outside(scene.run, first, &[])?;
    scene.section.fact("bare_client", bare.report.to_string());
    let limits = Limits {
        percent: 50.0,
        memory_mib: 1024,
        device_sms: bare.sms()?,
    };
    on_migs(scene, &limits, &[first])?;
    if let [first, second, ..] = &devices[..] {
        let both = format!("{first},{second}");
        let seen = clients::outside(scene.run, &both, &[])?.report;
        let count = seen["gpus"].as_array().map(Vec::len);
        let name = "MIG devices that a process sees of two";
        scene.section.equal(name, &count, &Some(1));
        on_migs(scene, &limits, &[first, second])?;
    }
    Ok(())
}

/// A job on these devices: a rank on each is under MPS, on one device with the limits, which the
/// daemon has by index 0.
fn on_migs(scene: &mut Scene<'_>, limits: &Limits, migs: &[&str]) -> Result<()> {
    let place = &scene.run.place;
    let job = Job::new(
        place,
        "4716.srv",
        "MPS=true,MPS_THREADS=50,MPS_MEM=1G",
        migs,
    )?;
    let count = migs.len();
    let good = format!("{count} MIG devices: mps-prologue");
    scene.section.good(good, &job.prologue()?);
    let mut found = Vec::new();
    for (rank, mig) in migs.iter().enumerate() {
        let rank = ("OMPI_COMM_WORLD_LOCAL_RANK", rank.to_string());
        let mut command = scene.exec(&job, &[rank])?;
        command.arg(place.staged("mps-probe")?);
        let client = clients::alone(command.args(limits.probe_options()))?;
        let name = format!("{count} MIG devices: NVML lists a client on {mig}");
        let is_listed = client.report["gpus"][0]["mps_listed"] == true;
        scene
            .section
            .check(name, is_listed, client.report.to_string());
        found.push(client);
    }
    clients::judge(scene.section, &found, limits);
    let good = format!("{count} MIG devices: mps-epilogue");
    scene.section.good(good, &job.epilogue()?);
    Ok(())
}

// All GPUs of the machine.

/// The most clients on the first GPU and one too many, while each other GPU is busy with its own
/// job.
pub fn full(scene: &mut Scene<'_>) -> Result<()> {
    let (place, mut jobs) = (&scene.run.place, Vec::new());
    for (number, gpu) in scene.run.gpus.iter().enumerate() {
        let job = Job::new(
            place,
            &format!("{}.srv", 6300 + number),
            PLAIN,
            &[&gpu.uuid],
        )?;
        job.prologue()?.success()?;
        jobs.push(job);
    }
    let begin = Instant::now();
    let busy = jobs[1..]
        .iter()
        .map(|job| job.load(1, &Work::new(2.0, 8.0)));
    let busy: Vec<Running> = busy
        .collect::<Result<Vec<_>>>()?
        .into_iter()
        .flatten()
        .collect();
    let crowd = jobs[0].load(MOST, &Work::new(6.0, 3.0))?;
    child::pause(Duration::from_secs(5).saturating_sub(begin.elapsed()))?;
    let extra = jobs[0]
        .load(1, &Work::new(0.0, 0.1))?
        .remove(0)
        .finish(PROGRAM)?;
    let name = format!("client {} of a GPU is refused", MOST + 1);
    scene
        .section
        .check(name, extra.code == Some(1), extra.story());
    let all_run = format!("{MOST} clients of it run");
    for (name, clients) in [
        (&*all_run, crowd),
        ("nobody on another GPU is touched", busy),
    ] {
        let mut failed = Vec::new();
        for client in clients {
            let ran = client.finish(PROGRAM)?;
            failed.extend((ran.code != Some(0)).then(|| ran.story()));
        }
        scene.section.none(name, &failed);
    }
    for job in &jobs {
        job.epilogue()?.success()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mig_devices_are_found_as_nvidia_smi_lists_them() {
        let list = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-c08d91cb-e324-655c-71ba-7570956445bc)\n\
                    \x20 MIG 3g.40gb     Device  0: (UUID: MIG-405bbda1-6b05-535f-9702-f95e8cd170ce)\n\
                    \x20 MIG 3g.40gb     Device  1: (UUID: MIG-b0a55a70-b1b0-529f-af26-79ccdc267be0)\n\
                    GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-00000000-e324-655c-71ba-7570956445bc)\n";
        let expected = [
            "MIG-405bbda1-6b05-535f-9702-f95e8cd170ce",
            "MIG-b0a55a70-b1b0-529f-af26-79ccdc267be0",
        ];
        assert_eq!(mig_devices(list), expected);
        assert!(mig_devices("GPU 0: NVIDIA H200 (UUID: GPU-1)\n").is_empty());
    }
}
