//! `mpsctl pbs install | uninstall | check | request`: our files in a PBS. The site's own files stay as they are.

use super::check::check;
use super::installation::{InstallOptions, Installation, Product, ProductOption};
use super::scripts::remove_scripts;
use crate::scheduler::call::Site;
use crate::scheduler::setup::{CheckLine, RunningJobs, SetupContext, Step, VerbError, VerbReport, apply};
use clap::{FromArgMatches, Subcommand};
use mpsd_core::failure::Refusal;
use mpsd_core::request::Request;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

#[derive(Debug, Subcommand)]
enum PbsVerb {
    /// Put our scripts (Torque) or our hook (OpenPBS) in place; print what only an administrator can do
    Install(InstallOptions),
    /// Remove what install put there, once no job with MPS runs on this node
    Uninstall {
        #[command(flatten)]
        product: ProductOption,
        #[command(flatten)]
        running: RunningJobs,
    },
    /// Say what works, what could be better, and what is wrong, one line each
    ///
    /// Exit status: 0 no FAIL; 1 a FAIL. As in doctor, a WARN works and could be better.
    Check(ProductOption),
    /// Read a request as the queuejob hook does: print it and the account without it, as JSON
    Request {
        /// The job's account
        #[arg(long, default_value = "")]
        account: OsString,
        /// The job's resource `mps`
        #[arg(long, default_value = "")]
        resource: String,
    },
}

pub(crate) fn command() -> clap::Command {
    PbsVerb::augment_subcommands(clap::Command::new("pbs").about("Torque and OpenPBS"))
        .subcommand_required(true)
        .arg_required_else_help(true)
}

/// The products, as the schedulers' list has them.
pub(crate) type Products = [&'static Product];

pub(crate) fn run(
    products: &Products,
    matches: &clap::ArgMatches,
    ctx: &SetupContext<'_>,
) -> Result<VerbReport, VerbError> {
    let verb = PbsVerb::from_arg_matches(matches).map_err(|error| error.to_string())?;
    // It says nothing of this node: a node with a broken configuration must know which jobs asked.
    if let PbsVerb::Request { account, resource } = &verb {
        let answer = request(account, resource).map_err(|refusal| refusal.to_string())?;
        return Ok(apply([Step::Note(answer)])?);
    }
    if let Some(broken) = &ctx.broken {
        return Err(broken.clone().into());
    }
    let (PbsVerb::Install(InstallOptions { product, .. })
    | PbsVerb::Uninstall { product, .. }
    | PbsVerb::Check(product)) = &verb
    else {
        return Ok(VerbReport::default());
    };
    let pbs = find(products, product, ctx)?;
    Ok(match &verb {
        PbsVerb::Install(options) => (pbs.product.install)(&pbs, options, ctx)?,
        PbsVerb::Uninstall { running, .. } => {
            let still = running.allow(&ctx.settings.paths)?;
            let mut report = apply(remove_scripts(&pbs))?;
            report.add((pbs.product.uninstall)(&pbs, ctx)?);
            report.lines.extend(still);
            report
        }
        PbsVerb::Check(_) | PbsVerb::Request { .. } => check(&pbs, ctx).into(),
    })
}

/// Checks each PBS that is here.
pub(crate) fn check_here(products: &Products, ctx: &SetupContext<'_>) -> Option<Vec<CheckLine>> {
    let here = installations(products, ctx).filter(Installation::is_here);
    let checks: Vec<_> = here.map(|pbs| check(&pbs, ctx)).collect();
    (!checks.is_empty()).then(|| checks.concat())
}

fn installations(products: &Products, ctx: &SetupContext<'_>) -> impl Iterator<Item = Installation> {
    let site = Site::of(&ctx.settings);
    products
        .iter()
        .map(move |product| Installation::find(product, &site, ctx.host))
}

/// The PBS that the option names, else the only one that has a `mom_priv` here.
fn find(products: &Products, option: &ProductOption, ctx: &SetupContext<'_>) -> Result<Installation, String> {
    let is_named = |pbs: &Installation| {
        let named = option.scheduler.as_ref();
        named.is_none_or(|name| *name == pbs.product.scheduler.to_string())
    };
    let named = installations(products, ctx).filter(is_named);
    let (here, elsewhere): (Vec<_>, Vec<_>) = named.partition(Installation::is_here);
    match here.as_slice() {
        [pbs] => Ok(pbs.clone()),
        [] => {
            let home = |pbs: &Installation| format!("'{}'", pbs.mom_priv().display());
            let homes: Vec<String> = elsewhere.iter().map(home).collect();
            let homes = homes.join(", no ");
            Err(format!(
                "no {homes}: no PBS mom on this node; set home under [pbs]"
            ))
        }
        _ => Err("both Torque and OpenPBS are here; say which with --scheduler".to_owned()),
    }
}

/// The answer to the queuejob hook, one line of JSON: `resource` (empty: not asked), the `account` without our words, and
/// a `note` if the account almost asks.
fn request(account: &OsStr, resource: &str) -> Result<String, Refusal> {
    let by_account = Request::from_account(account.as_bytes())?;
    let by_resource = (!resource.is_empty())
        .then(|| Request::from_resource(resource))
        .transpose()?;
    let request = match (by_account, by_resource) {
        (Some(one), Some(other)) => Some(Request::merge(one, other)?),
        (one, other) => one.or(other),
    };
    let text = account.to_string_lossy();
    let is_the_sites = |token: &&str| !token.is_empty() && matches!(Request::from_account(token), Ok(None));
    let rest: Vec<&str> = text
        .split([',', ';', ' ', '\t', '\n'])
        .filter(is_the_sites)
        .collect();
    let words = request
        .as_ref()
        .map(Request::in_resource_words)
        .unwrap_or_default();
    let mut answer = serde_json::json!({ "resource": words, "account": rest.join(",") });
    if request.is_none()
        && let Some(note) = Request::almost_asked(account.as_bytes())
    {
        answer["note"] = note.into();
    }
    Ok(answer.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_words_move_into_the_resource_and_the_sites_stay() {
        let said = |account: &str, resource| {
            request(account.as_ref(), resource).unwrap_or_else(|refusal| refusal.to_string())
        };
        for (account, resource, answer) in [
            (
                "proj1,MPS=true,MPS_THREADS=25;MPS_MEM=2G lab",
                "",
                r#"{"account":"proj1,lab","resource":"per-node+threads=25+mem=2G"}"#,
            ),
            ("mps_physics", "", r#"{"account":"mps_physics","resource":""}"#),
            (
                "proj1",
                "on+mem=2G",
                r#"{"account":"proj1","resource":"per-node+mem=2G"}"#,
            ),
        ] {
            assert_eq!(said(account, resource), answer);
        }
        let moved = Request::from_resource("per-node+threads=25+mem=2G").unwrap();
        let account = Request::from_account("MPS=true,MPS_THREADS=25,MPS_MEM=2G").unwrap();
        assert_eq!(Some(moved), account);
        assert!(request("MPS=true".as_ref(), "off").is_err());
        assert!(said("MPS=true,MPS_THREADS=101", "").starts_with("MPS_THREADS=101: "));
    }
}
