//! Jobs of one user that share an MPS on a GPU: Slurm's shards and gres/mps.

use std::collections::BTreeSet;
use std::os::unix::fs::chown;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::Signal;
use tests::node_bed::send;
use tests::slurm::{
    Bed, Client, Gpus, Options, Record, Simulated, User, install_plugin_double, stamp,
};

use crate::failures::starts_again_soon;
use crate::jobs::{LIMIT, check_bare, check_daemons, ended, holds, records, says};
use crate::runner::{Context, Group, cells};
use crate::sites::no_cgroups;

/// One GPU of four shards on each of two nodes.
pub const GROUP: Group = Group {
    options: shards,
    prepare: starts_again_soon,
    ..Group::fast(
        "shared",
        "",
        cells![
            the_last_to_leave_ends_it,
            another_user_and_who_asks_have_their_own,
            a_step_with_its_own_request_joins,
            a_step_has_its_shards_of_the_memory_whatever_its_variables_say,
            a_member_that_is_killed_takes_nothing_with_it,
        ],
    )
};

/// One node with the same shards. Its jobs have cgroups, and reach only their own GPU.
pub const CGROUPS: Group = Group {
    options: || {
        let gres = "AutoDetect=off\nName=gpu File=/dev/nvidia0\nName=shard Count=4\n";
        let options = Options {
            nodes: 1,
            minors: vec![0],
            gres: Some("gpu:1".into()),
            gres_conf: Some(gres.into()),
            ..shards()
        };
        options.with_cgroups(&["ConstrainDevices=yes"])
    },
    ..Group::fast(
        "shared_cgroups",
        "memory_over_limit = \"terminate\"\n",
        cells![
            a_client_without_its_variable_has_the_memory_of_its_job,
            a_step_that_ends_leaves_the_clients_of_its_jobs_other_steps,
        ],
    )
};

/// The same node. Its jobs have cgroups whose names are Slurm's second names for the jobs, as from
/// Slurm 26.05 on.
pub const SLUIDS: Group = Group {
    options: || Options {
        nodes: 1,
        ..shards()
    },
    prepare: name_cgroups_by_sluid,
    ..Group::fast("shared_sluids", CGROUPS.config, CGROUPS.cells)
};

/// The double of 26.05's cgroups stands before our plugin, as slurmd's own work does.
fn name_cgroups_by_sluid(bed: &mut Bed, _: &mut Simulated) -> Result<()> {
    let cgroup = bed.cgroup().context("no cgroup to make others in")?;
    let cgroup = cgroup.join("node1").display().to_string();
    let double = install_plugin_double(bed, "libsluid_double.so")?;
    let options = bed.options_mut();
    let own = options.plugin.take().context("no plugin of ours")?;
    let words = std::mem::take(&mut options.plugin_arguments).join(" ");
    options.stack_lines = vec![
        format!("required {} {cgroup}", double.display()),
        format!("optional {} {words}", own.display()),
    ];
    Ok(())
}

/// Two GPUs of four shards on one node, for jobs with shards and with whole GPUs.
pub const BURST: Group = Group {
    options: || Options {
        nodes: 1,
        gpus: Gpus::Simulated(2),
        gres_count: 8,
        ..shards()
    },
    ..Group::fast(
        "shared_burst",
        "deadline_s = 60\n",
        cells![jobs_of_three_users_leave_nothing],
    )
};

/// Two GPUs of four shards on one node, and a job may have shards of both.
pub const SEVERAL: Group = Group {
    options: several,
    needs: no_several,
    ..Group::fast(
        "shared_several",
        "",
        cells![a_job_on_both_gpus_is_a_member_on_each],
    )
};

pub const SEVERAL_CONFINED: Group = Group {
    options: || several().with_cgroups(&["ConstrainDevices=yes"]),
    needs: || no_several().or_else(|| no_cgroups(&["devices", "freezer"])),
    name: "shared_several_confined",
    ..SEVERAL
};

fn several() -> Options {
    Options {
        slurm_lines: vec!["SelectTypeParameters=CR_Core,MULTIPLE_SHARING_GRES_PJ".into()],
        ..(BURST.options)()
    }
}

fn no_several() -> Option<String> {
    let [_, major, minor, _] = stamp::installed().ok()?.to_be_bytes();
    let is_older = (major, minor) < (23, 11);
    is_older.then(|| format!("Slurm {major}.{minor:02} has no MULTIPLE_SHARING_GRES_PJ"))
}

fn shards() -> Options {
    Options {
        gpus: Gpus::Simulated(1),
        gres_types: vec!["shard".into()],
        gres_count: 4,
        ..Options::default()
    }
}

const ONE: &str = "--mps -w node1 --gres=shard:1";

/// A job on node1 with a client that launches kernels, once that client has its context.
struct Member {
    job: String,
    client: Client,
    file: std::path::PathBuf,
}

impl Member {
    fn start(cell: &Context, user: &User, words: &str, seconds: &str) -> Result<Member> {
        let count = std::fs::read_dir(cell.bed.home(user))?.count();
        let file = cell.bed.home(user).join(format!("member{count}"));
        std::fs::write(&file, "")?;
        chown(&file, Some(user.uid), Some(user.gid))?;
        let options = format!("--busy --hold {seconds} --record {}", file.display());
        let line = cell.client(&options);
        let client = cell.start_as(user, &format!("srun {words}"), &line, &[])?;
        let mut found = Vec::new();
        cell.wait("the member's client", || {
            found = Record::all(&std::fs::read_to_string(&file)?)?;
            Ok(!found.is_empty() || !client.runs())
        })?;
        let Some(record) = found.pop() else {
            bail!("{}", client.wait(LIMIT)?.story());
        };
        let job = record.job.unwrap_or_default();
        Ok(Member { job, client, file })
    }

    fn of(cell: &Context, seconds: &str) -> Result<Member> {
        Member::start(cell, &cell.user, ONE, seconds)
    }

    fn record(&self) -> Result<Record> {
        let mut all = records(&std::fs::read_to_string(&self.file)?)?;
        Ok(all.remove(0))
    }

    fn daemon(&self) -> Result<Option<i32>> {
        Ok(self.record()?.daemon_pid)
    }

    /// Ends the job. Until then its client must have had no error.
    fn cancel(self, cell: &Context) -> Result<()> {
        ensure!(self.client.runs(), "{}", self.client.wait(LIMIT)?.story());
        cell.root(&format!("scancel {}", self.job))?;
        let all = records(&self.client.wait(LIMIT)?.said())?;
        check_daemons(&all, all[0].uid.unwrap_or_default(), 1)
    }

    fn end(self, uid: u32) -> Result<()> {
        check_daemons(&ended(self.client)?, uid, 1)
    }
}

fn shared(cell: &Context) -> usize {
    let dir = cell.bed.run_dir().join("node1/shared");
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter(|entry| entry.path().is_dir()).count()
}

/// The daemon stays for the jobs that are left, no matter which job began it, and ends with the
/// last. Each job has its own limits: of 143,771 MiB, and of twice the job's part of the
/// multiprocessors.
fn the_last_to_leave_ends_it(cell: &Context) -> Result<()> {
    let limited = format!("{ONE} --mps-threads=50 --mps-mem=2G");
    let half = "--mps -w node1 --gres=shard:2 --mps-threads=auto --mps-mem=auto";
    let has = |member: &Member, sms, memory_mib| {
        let record = member.record()?;
        let right = (record.sms, record.memory_limit_mib) == (Some(sms), memory_mib);
        holds(right, &record)
    };
    for seconds in [["3", "60"], ["60", "3"]] {
        let first = Member::start(cell, &cell.user, &limited, seconds[0])?;
        let second = Member::of(cell, seconds[1])?;
        has(&first, 66, Some(2048))?;
        has(&second, 132, None)?;
        let daemon = first.daemon()?;
        let same = second.daemon()? == daemon;
        holds(same && shared(cell) == 1, &second.record()?)?;
        let (earlier, later) = match seconds {
            ["3", _] => (first, second),
            _ => (second, first),
        };
        earlier.end(cell.user.uid)?;
        let third = Member::start(cell, &cell.user, half, "0.1")?;
        has(&third, 132, Some(71_885))?;
        holds(third.daemon()? == daemon, &third.record()?)?;
        third.end(cell.user.uid)?;
        later.cancel(cell)?;
        cell.wait("the end of the shared MPS", || Ok(shared(cell) == 0))?;
    }
    Ok(())
}

fn another_user_and_who_asks_have_their_own(cell: &Context) -> Result<()> {
    let words = ["--mps", "--mps", "--mps=own"].map(|mps| format!("{mps} -w node1 --gres=shard:1"));
    let users = [&cell.user, &cell.other, &cell.user];
    let asked = users.into_iter().zip(&words);
    let all = asked.map(|(user, words)| Member::start(cell, user, words, "60"));
    let all: Vec<Member> = all.collect::<Result<_>>()?;
    let bare = cell.clients("-w node1 --gres=shard:1", "--hold 0.1")?;
    check_bare(&bare)?;
    let daemons: BTreeSet<_> = all.iter().map(Member::daemon).collect::<Result<_>>()?;
    holds(daemons.len() == 3 && shared(cell) == 2, &daemons)?;
    all.into_iter().try_for_each(|member| member.cancel(cell))
}

fn a_step_with_its_own_request_joins(cell: &Context) -> Result<()> {
    let member = Member::of(cell, "3")?;
    let line = cell.client("--hold 0.1");
    let script = format!("({line})\nsrun --mps /bin/sh -c '{line}'");
    let (_, said) = cell.batch("-w node1 --gres=shard:1", &script)?;
    let all = records(&said)?;
    holds(all.len() == 2 && !all[0].under_mps, &all)?;
    holds(all[1].daemon_pid == member.daemon()?, &all)?;
    member.end(cell.user.uid)
}

fn a_step_that_ends_leaves_the_clients_of_its_jobs_other_steps(cell: &Context) -> Result<()> {
    let step = |words: &str| {
        let line = cell.client(words);
        format!("srun --mps -n1 --exact --gres=shard:1 /bin/sh -c '{line}' &\n")
    };
    let script = step("--busy --hold 4") + &step("--hold 0.5") + "wait";
    let (_, said) = cell.batch("-w node1 -n2 --gres=shard:2", &script)?;
    let all = records(&said)?;
    holds(all.len() == 2, &all)?;
    check_daemons(&all, cell.user.uid, 1)
}

/// One is canceled. The other's slurmstepd is killed, which Slurm itself does not notice.
fn a_member_that_is_killed_takes_nothing_with_it(cell: &Context) -> Result<()> {
    let member = Member::of(cell, "60")?;
    Member::of(cell, "60")?.cancel(cell)?;
    let killed = Member::of(cell, "60")?;
    let step = format!("slurmstepd: [{}.0]", killed.job);
    let mut stepds = cell.bed.job_processes();
    stepds.retain(|process| process.args.join(" ").starts_with(&step));
    holds(stepds.len() == 1, &stepds)?;
    send(stepds[0].pid, Signal::SIGKILL)?;
    cell.root(&format!("scancel {}", killed.job))?;
    let _ = killed.client.wait(LIMIT)?;
    let another = Member::of(cell, "0.1")?;
    holds(another.daemon()? == member.daemon()?, &another.record()?)?;
    another.end(cell.user.uid)?;
    member.cancel(cell)?;
    cell.check_in_service()
}

fn a_client_without_its_variable_has_the_memory_of_its_job(cell: &Context) -> Result<()> {
    let member = Member::of(cell, "60")?;
    let line = cell.client("--alloc 4096 --busy --hold 60");
    let line = format!("unset CUDA_MPS_PINNED_DEVICE_MEM_LIMIT; {line}");
    let words = format!("srun {ONE} --mps-mem=1G");
    let over = cell.start_as(&cell.user, &words, &line, &[])?;
    let said = over.wait(LIMIT)?.fails()?.said();
    let words = [" of job ", " holds ", "its limit is 1024 MiB"];
    says(&said, &words)?;
    says(&said, &["cudaErrorMpsClientTerminated"])?;
    member.cancel(cell)
}

pub fn a_percentage_is_the_jobs_part(cell: &Context) -> Result<()> {
    let line = "--mps -w node1 --gres=mps:25 --mps-mem=auto";
    let member = Member::start(cell, &cell.user, line, "2")?;
    let second = Member::start(cell, &cell.user, line, "0.1")?;
    let (one, other) = (member.record()?, second.record()?);
    let part = |record: &Record| (record.sms, record.memory_limit_mib) == (Some(32), Some(35_942));
    let right = part(&one) && part(&other) && one.daemon_pid == other.daemon_pid;
    holds(right, &(one, other))?;
    second.end(cell.user.uid)?;
    member.end(cell.user.uid)
}

/// Without gres/mps Slurm leaves the variable as the user wrote it.
fn a_step_has_its_shards_of_the_memory_whatever_its_variables_say(cell: &Context) -> Result<()> {
    let line = cell.client("--hold 0.1");
    let forged = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100 SLURM_SHARDS_ON_NODE=4";
    let step =
        format!("{forged} srun --mps --mps-mem=auto -n1 --gres=shard:1 /bin/sh -c '{line}'\n");
    let (_, said) = cell.batch("-w node1 --gres=shard:1", &step)?;
    let all = records(&said)?;
    let limits: Vec<_> = all.iter().map(|record| record.memory_limit_mib).collect();
    holds(limits == [Some(35_942)], &all)
}

/// The first to begin has two shards of one GPU. The second has the rest of that GPU, or the other
/// GPU too.
fn a_job_on_both_gpus_is_a_member_on_each(cell: &Context) -> Result<()> {
    let wide = "-n2 --mps --mps-mem=auto -w node1 --gres=shard:6";
    let narrow = "-n1 --mps --mps-mem=auto -w node1 --gres=shard:2";
    for words in [[wide, narrow], [narrow, wide]] {
        for seconds in [["3", "5"], ["5", "3"]] {
            let start = |at: usize| Member::start(cell, &cell.user, words[at], seconds[at]);
            let members = [start(0)?, start(1)?];
            holds(shared(cell) == 2, &words)?;
            let mut all = Vec::new();
            for (member, words) in members.into_iter().zip(words) {
                let ended = ended(member.client)?;
                check_daemons(&ended, cell.user.uid, if words == wide { 2 } else { 1 })?;
                all.extend(ended);
            }
            // On each GPU the smaller of the job's two parts: two of its four shards are on the
            // other GPU.
            let half = |record: &Record| record.memory_limit_mib == Some(71_885);
            let daemons: BTreeSet<_> = all.iter().map(|record| record.daemon_pid).collect();
            holds(daemons.len() == 2 && all.iter().all(half), &all)?;
            cell.wait("the end of the shared MPS", || Ok(shared(cell) == 0))?;
        }
    }
    Ok(())
}

/// Jobs of each user; `MPSD_BURST` sets another number.
fn jobs_of_three_users_leave_nothing(cell: &Context) -> Result<()> {
    let jobs: usize = std::env::var("MPSD_BURST").map_or(Ok(40), |text| text.parse())?;
    let third = User::named("games")?;
    let users = [&cell.user, &cell.other, &third];
    if !cell.bed.home(&third).exists() {
        std::fs::create_dir(cell.bed.home(&third))?;
        chown(cell.bed.home(&third), Some(third.uid), Some(third.gid))?;
    }
    let (mut lost, client) = (BTreeSet::new(), cell.client("--busy --hold 0.3"));
    for count in 0..jobs {
        for user in users {
            let gres = ["shard:1", "shard:1", "gpu:1"][count % 3];
            let output = "--output=burst.out --open-mode=append";
            let words = format!("--mps --mps-threads=50 --gres={gres} {output}");
            let words: Vec<&str> = words.split(' ').collect();
            let job = cell.bed.sbatch(user, &words, &client)?;
            if count % 7 == 3 {
                lost.insert(job.to_string());
                let signal = ["", "--full --signal=KILL"][count % 2];
                cell.root(&format!("scancel {signal} {job}"))?;
            }
        }
    }
    cell.bed.wait_idle(Duration::from_secs(600))?;
    cell.check_in_service()?;
    let mut seen = BTreeSet::new();
    for user in users {
        let output = cell.bed.home(user).join("burst.out");
        let all = records(&std::fs::read_to_string(output)?)?;
        let right = |record: &Record| {
            record.under_mps && record.error.is_none() && record.uid == Some(user.uid)
        };
        let is_lost = |record: &Record| record.job.as_ref().is_some_and(|job| lost.contains(job));
        let wrong = all
            .iter()
            .filter(|record| !is_lost(record) && !right(record));
        let wrong: Vec<_> = wrong.collect();
        ensure!(wrong.is_empty(), "{wrong:?}");
        seen.extend(all.into_iter().filter_map(|record| record.job));
    }
    let all = jobs * users.len();
    let missing = all - seen.union(&lost).count();
    ensure!(missing == 0, "{missing} of {all} jobs did not run");
    Ok(())
}
