//! `mpsctl pbs install | uninstall | check | request`: our files in a PBS, and nobody else's touched.

use super::check::check;
use super::installation::Installation;
use super::verbs::{OwnSteps, Pbs, Where};
use super::{files, request};
use crate::scheduler::setup::{CheckLine, SetUp, SetupContext, VerbError, VerbReport};
use crate::scheduler::site::Site;
use clap::{FromArgMatches, Subcommand};

/// The verbs, as `mpsctl` offers them, for these products.
pub(crate) struct Verbs(pub &'static [&'static dyn OwnSteps]);

impl SetUp for Verbs {
    fn command(&self) -> clap::Command {
        Pbs::augment_subcommands(clap::Command::new("pbs").about("Torque and OpenPBS"))
            .subcommand_required(true)
            .arg_required_else_help(true)
    }

    fn run(&self, matches: &clap::ArgMatches, around: &SetupContext<'_>) -> Result<VerbReport, VerbError> {
        let verb = Pbs::from_arg_matches(matches).map_err(|error| error.to_string())?;
        let mut done = VerbReport::default();
        // It says nothing of this node, and a node without a usable configuration must know which job asked.
        if let Pbs::Request(asked) = &verb {
            done.did(request::read(asked).map_err(|refusal| refusal.to_string())?);
            return Ok(done);
        }
        if let Some(broken) = &around.broken {
            return Err(broken.clone().into());
        }
        Ok(match &verb {
            Pbs::Request(_) => done,
            Pbs::Install(options) => {
                let (steps, pbs) = self.find(&options.place, around)?;
                steps.install(&pbs, options, around)?
            }
            Pbs::Uninstall(options) => {
                let (steps, pbs) = self.find(&options.place, around)?;
                let still = options.running.allow(&around.settings.paths)?;
                let mut done = files::uninstall(&pbs, steps.scripts())?;
                done.add(steps.uninstall(&pbs, around)?);
                done.lines.extend(still);
                done
            }
            Pbs::Check(place) => {
                let (steps, pbs) = self.find(place, around)?;
                check(steps, &pbs, around).into()
            }
        })
    }

    fn look(&self, _: &str, around: &SetupContext<'_>) -> Option<Vec<CheckLine>> {
        let site = Site::of(&around.settings);
        let all = self.0.iter();
        let all = all.map(|steps| (*steps, Installation::find(steps.product(), &site, around.host)));
        let here: Vec<_> = all.filter(|(_, pbs)| pbs.is_here()).collect();
        let found = here
            .iter()
            .flat_map(|(steps, pbs)| check(*steps, pbs, around))
            .collect();
        (!here.is_empty()).then_some(found)
    }
}

impl Verbs {
    /// The PBS that is meant: the one named, else the only one that has a `mom_priv` here.
    fn find(
        &self,
        place: &Where,
        around: &SetupContext<'_>,
    ) -> Result<(&'static dyn OwnSteps, Installation), String> {
        let site = Site::of(&around.settings);
        let named = |name: String| place.scheduler.as_ref().is_none_or(|wanted| *wanted == name);
        let all = self
            .0
            .iter()
            .filter(|steps| named(steps.product().scheduler.to_string()));
        let all = all.map(|steps| (*steps, Installation::find(steps.product(), &site, around.host)));
        let (here, elsewhere): (Vec<_>, Vec<_>) = all.partition(|(_, pbs)| pbs.is_here());
        match here.as_slice() {
            [(steps, pbs)] => Ok((*steps, pbs.clone())),
            [] => {
                let homes: Vec<String> = elsewhere
                    .iter()
                    .map(|(_, pbs)| format!("'{}'", pbs.mom_priv().display()))
                    .collect();
                let homes = homes.join(", no ");
                Err(format!(
                    "no {homes}: no PBS mom on this node; set home under [pbs]"
                ))
            }
            _ => Err("both Torque and OpenPBS are here; say which with --scheduler".to_owned()),
        }
    }
}
