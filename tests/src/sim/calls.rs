//! The calls of [`mpsd::job::node`], each in its smallest steps.

use super::{Living, SharedWorld, Sim, World, reference};
use batch::control::{Controller, NodeStatus};
use batch::drain::Place;
use batch::{Location, Requeued, Scheduler, UserRef};
use mpsd::job::DrainTarget;
use mpsd::job::journal::{Journal, ProcessRef, Programs};
use mpsd::job::node::{
    Console, Daemons, Gpus, Member, Members, Role, Rung, Scheduling, Severity, Thread, Waiting,
};
use mpsd::job::spec::Spec;
use mpsd_core::failure::{Evidence, Fault, Undetermined};
use mpsd_core::gpu::GpuProcess;
use mpsd_core::{ComputeMode, Failure, GpuUuid, Inventory, JobId};
use mpsd_sys::deadline::Deadline;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

const NVML: i32 = 77;
const STARTER: i32 = 99;

impl Sim {
    fn members_where(&self, meant: impl Fn(i32, &Living) -> bool) -> Vec<Member> {
        let world = self.world.borrow();
        let found = world.processes.iter().filter(|(pid, p)| meant(**pid, p));
        let member = |(pid, p): (&i32, &Living)| Member {
            process: reference(*pid),
            role: p.role,
            state: p.state,
        };
        found.map(member).collect()
    }

    fn signal(&mut self, pids: &[i32], rung: Rung) {
        for pid in pids {
            self.step(|world| {
                let survives = world.processes.get(pid).and_then(|p| p.survives);
                if survives.is_none_or(|upto| upto < rung) {
                    world.processes.remove(pid);
                }
            });
            // What still lives continues its work between two of our steps.
            self.world.borrow_mut().settle();
        }
    }

    fn gone(&self, gpu: &GpuUuid) -> Failure {
        Fault::new(Evidence::GpuLost, format!("GPU {gpu}"), "it is not there").into()
    }
}

impl Gpus for Sim {
    fn use_nvml(&mut self, _: &str) {}

    fn inventory(&mut self, _: Option<(Inventory, Vec<GpuUuid>)>) -> Result<Inventory, Failure> {
        self.call("inventory")?;
        Ok(self.world.borrow().inventory.clone())
    }

    fn silent_nvml(&mut self) -> Option<ProcessRef> {
        self.world.borrow().silent.then(|| reference(NVML))
    }

    fn compute_mode(&mut self, gpu: &GpuUuid) -> Result<ComputeMode, Failure> {
        self.call("compute_mode")?;
        let world = self.world.borrow();
        let is_there = world.inventory.by_uuid(gpu).is_some();
        let mode = is_there.then(|| world.mode(gpu));
        mode.ok_or_else(|| self.gone(gpu))
    }

    fn set_compute_mode(&mut self, gpu: &GpuUuid, mode: ComputeMode) -> Result<(), Failure> {
        self.call("set_compute_mode")?;
        let has_server = |p: &Living| p.role == Role::Server && p.gpus.contains(gpu);
        let begins = mode == ComputeMode::ExclusiveProcess;
        let busy = begins && self.world.borrow().processes.values().any(has_server);
        assert!(!busy, "the server started before the mode was set");
        self.step(|world| world.set_mode(gpu, mode));
        Ok(())
    }

    fn gpu_processes(&mut self, gpu: &GpuUuid) -> Result<Vec<GpuProcess>, Failure> {
        self.call("gpu_processes")?;
        let world = self.world.borrow();
        let is_on = |p: &Living| p.gpus.contains(gpu) && p.state != 'Z';
        let own = world.processes.iter();
        let own = own.filter(|(_, p)| p.role != Role::Supervisor && is_on(p));
        let foreign = world.foreign.iter().filter(|(on, _)| on == gpu);
        let process = |pid: &i32| GpuProcess {
            pid: *pid,
            memory: None,
            mps_client: false,
        };
        let pids = own.map(|(pid, _)| pid).chain(foreign.map(|(_, pid)| pid));
        Ok(pids.map(process).collect())
    }
}

impl Daemons for Sim {
    fn check_control(&mut self, control: &Path) -> Result<(), Failure> {
        self.call("check_control")?;
        self.checked = Some(control.to_owned());
        Ok(())
    }

    fn programs(&mut self, _: &Path) -> Programs {
        Programs::default()
    }

    fn make_cgroup(&mut self, journal: &Journal) -> Result<Option<PathBuf>, Failure> {
        self.call("make_cgroup")?;
        if !self.world.borrow().has_cgroups {
            return Ok(None);
        }
        let path = cgroup_of(journal.job());
        self.step(|world| world.cgroups.insert(path.clone()));
        Ok(Some(path))
    }

    fn remove_cgroup(&mut self, journal: &Journal) -> Result<(), Failure> {
        self.call("remove_cgroup")?;
        if self.world.borrow().has_process(journal.job(), |_| true) {
            return Err(Undetermined::new("the job's cgroup stays", "it is not empty").into());
        }
        self.step(|world| world.cgroups.remove(&cgroup_of(journal.job())));
        Ok(())
    }

    fn start_supervisor(&mut self, journal: &Journal, spec: &Spec) -> Result<ProcessRef, Failure> {
        self.call("start_supervisor")?;
        let is_checked = self.checked.as_ref() == Some(&spec.control);
        assert!(is_checked, "a program that root has not checked");
        self.outside |= spec.outside;
        let gpus = journal.record().gpus.iter();
        let mpsd = Living {
            role: Role::Supervisor,
            job: journal.job().clone(),
            uid: journal.uid(),
            gpus: gpus.map(|gpu| gpu.uuid.clone()).collect(),
            survives: self.world.borrow().stubborn,
            state: 'S',
        };
        Ok(reference(self.step(|world| world.spawn(mpsd))))
    }

    fn await_ready(&mut self, journal: &Journal, _: &Spec) -> Result<Vec<ProcessRef>, Failure> {
        self.call("await_ready")?;
        self.step(World::settle);
        let mut world = self.world.borrow_mut();
        let has = |role| world.has_process(journal.job(), |p| p.role == role);
        if !has(Role::Control) || !has(Role::Server) {
            return Err(Undetermined::new("mpsd", "it ended without a report").into());
        }
        world.proved.insert(journal.job().clone());
        let vendors = |p: &Living| p.job == *journal.job() && p.role != Role::Supervisor;
        let all = world.processes.iter().filter(|(_, p)| vendors(p));
        Ok(all.map(|(pid, _)| reference(*pid)).collect())
    }

    /// One process does what the second one would do, and can die at every point.
    fn detach(&mut self, rest: impl FnOnce(&mut Self)) -> bool {
        self.point();
        let divided = !self.world.borrow().undivided;
        if divided {
            self.alone = true;
            self.world.borrow_mut().starter = Some(STARTER);
            rest(self);
            self.world.borrow_mut().starter = None;
        }
        divided
    }

    fn own_process(&self) -> Option<ProcessRef> {
        self.world.borrow().starter.map(reference)
    }

    fn end_starter(&mut self, starter: ProcessRef) {
        let own = self.locks.borrow().clone();
        self.step(|world| {
            if world.starter == Some(starter.pid) {
                world.starter = None;
                world.starter_ended = true;
                // The kernel frees what it held.
                world.held.retain(|lock| own.contains(lock));
            }
        });
    }
}

impl Members for Sim {
    fn grouped(&mut self, journal: &Journal) -> Vec<i32> {
        self.point();
        let world = self.world.borrow();
        let grouped = world.cgroups.contains(&cgroup_of(journal.job()));
        let all = world.processes.iter();
        let its = all.filter(|(_, p)| grouped && p.job == *journal.job());
        its.map(|(pid, _)| *pid).collect()
    }

    fn process(&mut self, pid: i32) -> Option<(ProcessRef, char)> {
        let world = self.world.borrow();
        world.processes.get(&pid).map(|p| (reference(pid), p.state))
    }

    fn roles(&mut self, _: &Journal, processes: &[ProcessRef]) -> Vec<(ProcessRef, Role)> {
        let world = self.world.borrow();
        let role = |id: &ProcessRef| Some((*id, world.processes.get(&id.pid)?.role));
        processes.iter().filter_map(role).collect()
    }

    fn strays(&mut self, journal: &Journal) -> Vec<Member> {
        if journal.cgroup.is_some() {
            return Vec::new();
        }
        let own = pids(&self.known_members(journal));
        self.members_where(|pid, p| p.job == *journal.job() && !own.contains(&pid))
    }

    fn end_each(&mut self, members: &[Member], rung: Rung, _limit: Duration) {
        self.point();
        self.signal(&pids(members), rung);
    }

    fn climb(&mut self, journal: &Journal, rung: Rung, _limit: Duration) -> Vec<Member> {
        self.point();
        let own = pids(&self.known_members(journal));
        self.signal(&own, rung);
        self.known_members(journal)
    }

    fn threads(&mut self, process: ProcessRef) -> Option<Vec<Thread>> {
        self.point();
        let mut world = self.world.borrow_mut();
        let nvml = process == reference(NVML);
        if !nvml && !world.processes.contains_key(&process.pid) {
            return None;
        }
        match world.looks.len() {
            0 => Some(Vec::new()),
            1 => world.looks.first().cloned(),
            _ => Some(world.looks.remove(0)),
        }
    }

    fn waiting(&mut self) -> Option<Vec<Waiting>> {
        self.point();
        self.world.borrow().waiting.clone()
    }

    fn user_is_here(&mut self, _: &Journal) -> bool {
        self.point();
        let looks = &mut self.world.borrow_mut().user_is_seen;
        let left = looks.checked_sub(1);
        *looks = left.unwrap_or(0);
        left.is_some()
    }

    fn end_clients(&mut self, shared: &Journal, sharer: &Journal) {
        let clients =
            |p: &Living| p.role == Role::Other && p.job == *sharer.job() && p.uid == shared.uid();
        self.step(|world| world.processes.retain(|_, p| !clients(p)));
    }

    fn is_of_job(&mut self, journal: &Journal, pid: i32) -> Option<bool> {
        self.point();
        let world = self.world.borrow();
        let its = world.processes.get(&pid)?;
        (its.uid == journal.uid()).then(|| its.job == *journal.job())
    }
}

impl Scheduling for Sim {
    fn controller(&mut self, place: &Place<'_>) -> Box<dyn Controller> {
        self.point();
        Box::new(SimController {
            world: Rc::clone(&self.world),
            is_slurm: place.scheduler == Scheduler::Slurm,
        })
    }

    fn undelivered(&mut self, _: &str) -> Option<String> {
        self.point();
        self.world.borrow().undelivered.clone()
    }

    fn drain(
        &mut self,
        _: &Place<'_>,
        target: &DrainTarget,
        fault: &Fault,
    ) -> Option<(String, bool)> {
        let reason = format!("{} {}: {fault}", target.prefix.as_ref()?, target.jobs());
        self.step(|world| world.drains.push(reason.clone()));
        Some((reason, !self.world.borrow().deaf))
    }

    fn remark(&mut self, _: &Place<'_>, failure: &Failure) -> Option<String> {
        self.world.borrow_mut().remarks.push(failure.to_string());
        None
    }

    fn withdraw_remarks(&mut self, _: &Location) -> Vec<String> {
        Vec::new()
    }

    fn note(&mut self, _: &Place<'_>, _: &JobId, _: &UserRef, _: &str) -> Result<(), String> {
        Ok(())
    }
}

/// The orders that a start gives.
struct SimController {
    world: SharedWorld,
    is_slurm: bool,
}

impl Controller for SimController {
    fn status(&self) -> Result<NodeStatus, String> {
        Ok(NodeStatus::default())
    }

    fn take_out(&self, _: &str, _: Option<&str>) -> Result<String, String> {
        Ok(String::new())
    }

    fn put_back(&self, _: Option<&str>) -> Result<String, String> {
        Ok(String::new())
    }

    fn withdraw(&self, _: &str, _: Option<&str>) -> Result<(), String> {
        Ok(())
    }

    fn requeue(&self, job: &JobId, _: u32) -> Result<Requeued, String> {
        self.world.borrow_mut().requeued.push(job.clone());
        Ok(Requeued::default())
    }

    fn end_script(&self, _: &JobId) -> Result<bool, String> {
        let not_ours = || "this scheduler does not do that for us".to_owned();
        (!self.is_slurm).then(not_ours).map_or(Ok(true), Err)
    }
}

impl Console for Sim {
    fn log(&mut self, _: Severity, line: &str) {
        self.step(|world| world.log.push(line.to_owned()));
    }

    fn complain(&mut self, line: &str) {
        self.step(|world| world.complaints.push(line.to_owned()));
    }

    fn since_boot(&self) -> u64 {
        self.world.borrow().now
    }

    fn wait_until(&mut self, _: Deadline) {
        self.step(|world| world.waits += 1);
    }
}

fn pids(members: &[Member]) -> Vec<i32> {
    members.iter().map(|member| member.process.pid).collect()
}

fn cgroup_of(job: &JobId) -> PathBuf {
    PathBuf::from(format!("/sys/fs/cgroup/mpsd/{}", job.directory_name()))
}
