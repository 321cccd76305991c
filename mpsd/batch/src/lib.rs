//! The batch systems: what each says of a job, and what is said to it.
//!
//! Each has a folder that implements [`BatchSystem`] and is registered in [`ALL`]; no other code
//! tells them apart. `pbs` has what Torque and OpenPBS share. A call is an [`Input`]; [`Host`]
//! reaches files and commands.
//!
//! Argument vectors, environments and files: recorded on OpenPBS 23.06.06, Torque 6.1.3 and Slurm
//! 22.05.8.
#![allow(missing_docs, missing_debug_implementations)]

pub mod batch_system;
pub mod call;
pub mod control;
pub mod devices;
pub mod drain;
pub mod gpu_host;
pub mod host;
pub mod openpbs;
pub mod pbs;
pub mod slurm;
pub mod torque;
pub mod trial;

#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use batch_system::{BatchSystem, ExitPolicy, SystemFacts, Unattached};
pub use call::{Budget, CallOptions, Input, Location, Lookup, Program, Submission, UserRef};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
pub use control::Requeued;
pub use devices::{Devices, Exclusive, GpuName, GpuSource, Part};
pub use host::{Host, ThisHost};
use mpsd_core::Refusal;
use mpsd_core::failure::{Failure, Undetermined};
use mpsd_core::job::JobId;
pub use mpsd_core::job::Scheduler;
use mpsd_core::text::one_line;
pub use slurm::numbers::Numbers;
pub use torque::may_run_as_root;

/// Every batch system that mpsd knows. A new one is a folder and its line here.
pub static ALL: [&dyn BatchSystem; 3] = [&slurm::Slurm, &torque::Torque, &openpbs::OpenPbs];

pub fn of(scheduler: Scheduler) -> &'static dyn BatchSystem {
    let is_it = |system: &&dyn BatchSystem| system.scheduler() == scheduler;
    ALL.into_iter().find(is_it).unwrap_or(ALL[0])
}

pub fn by_name() -> impl TypedValueParser<Value = Scheduler> {
    let value = |facts: &SystemFacts| PossibleValue::new(facts.scheduler.name()).help(facts.title);
    let values = ALL.map(|system| value(system.facts()));
    PossibleValuesParser::new(values).try_map(|name| {
        let mut known = ALL.into_iter().map(BatchSystem::scheduler);
        let named = known.find(|scheduler| scheduler.name() == name);
        named.ok_or("no batch system that mpsd knows")
    })
}

/// The systems that may have this job here, by its id alone.
pub fn owners(job: &JobId, location: &Location) -> impl Iterator<Item = &'static dyn BatchSystem> {
    ALL.into_iter()
        .filter(|system| system.at(location).may_own(job))
}

/// The ids that a user may mean by the number of a job alone: each system's, then the number.
pub fn meant(job: &str, location: &Location) -> Result<Vec<JobId>, Refusal> {
    let is_number = job.starts_with(|c: char| c.is_ascii_digit()) && !job.contains(['.', '_']);
    let systems = ALL.into_iter().filter(|_| is_number);
    let whole = systems.flat_map(|system| system.at(location).whole_ids(job));
    let all = whole.chain([job.to_owned()]);
    all.map(|id| JobId::parse(&id)).collect()
}

pub fn scheduled_devices(
    job: &JobId,
    env: Lookup<'_>,
    location: &Location,
    host: &dyn Host,
) -> Option<String> {
    ALL.into_iter()
        .find_map(|system| system.scheduled_devices(job, env, location, host))
}

pub fn late_script(job: &JobId, location: &Location) -> Option<String> {
    ALL.into_iter()
        .find_map(|system| system.late_script(job, location))
}

/// The system that calls us: as `--scheduler` says, else by the arguments and the environment.
pub fn caller(input: &Input<'_>) -> Option<&'static dyn BatchSystem> {
    let calls = |system: &&dyn BatchSystem| system.calls(input.arguments.len(), input.env);
    let named = input.scheduler.map(of);
    named.or_else(|| ALL.into_iter().find(calls))
}

/// The job and its request. It fails for a call that no scheduler makes; else as
/// [`BatchSystem::read`].
pub fn read(input: &Input<'_>, host: &dyn Host) -> Result<Submission, Failure> {
    match caller(input) {
        Some(system) => system.read(input, host),
        None => {
            let vector = |facts: &SystemFacts| facts.vectors[input.program as usize];
            let known = ALL.map(|one| format!("{} ({})", vector(one.facts()), one.scheduler()));
            let what = format!("{} arguments", input.arguments.len());
            let why = format!("no scheduler calls so; expected: {}", known.join(", "));
            Err(Undetermined::new(what, why).into())
        }
    }
}

/// The job's GPUs and tasks on this node; `--gpus` overrides the scheduler. It fails for an
/// unreadable `--gpus`, or as [`BatchSystem::elsewhere`].
pub fn devices(
    submission: &Submission,
    input: &Input<'_>,
    host: &dyn Host,
) -> Result<Devices, Failure> {
    let given = input.given.gpus.as_deref().map(|text| {
        let unread = |why| Undetermined::new(format!("--gpus '{}'", one_line(text, 80)), why);
        GpuName::parse_list(text).map(GpuSource::of).map_err(unread)
    });
    let given = given.transpose()?;
    let system = of(submission.scheduler);
    system.elsewhere(submission, input, host)?;
    let found = system.devices(submission, input, host);
    let gpus = given.unwrap_or(found.gpus);
    Ok(Devices { gpus, ..found })
}

#[cfg(test)]
mod tests {
    //! What holds for every batch system that is registered.

    use super::*;

    #[test]
    fn every_name_is_registered_once_and_found_by_it() {
        for system in ALL {
            let name = system.scheduler();
            assert!(std::ptr::addr_eq(of(name), system), "{name} is there twice");
            let read: Scheduler = serde_json::from_str(&format!("\"{name}\"")).unwrap();
            assert_eq!(read, name, "the name in journals is the one in --scheduler");
        }
        // serde lists the enum's names in its error about an unknown one.
        let error = serde_json::from_str::<Scheduler>("\"nobody\"").unwrap_err();
        let error = error.to_string();
        assert_eq!(error.matches('`').count(), 2 * (ALL.len() + 1), "{error}");
    }

    #[test]
    fn no_call_is_taken_for_that_of_two() {
        let torque: Lookup<'_> = &|name| (name == "PBS_NODENUM").then(|| "0".to_owned());
        let slurm: Lookup<'_> = &|name| (name == "SLURM_JOB_ID").then(|| "4711".to_owned());
        for env in [torque, slurm, &|_| None] {
            for arguments in 0..14 {
                let calls = ALL.iter().filter(|system| system.calls(arguments, env));
                assert!(calls.count() <= 1, "{arguments} arguments");
            }
        }
    }
}
