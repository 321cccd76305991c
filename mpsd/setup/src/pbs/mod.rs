//! `mpsctl pbs install | uninstall | check | request`: our files in a PBS. The site's own files
//! stay as they are.

mod check;
pub mod product;

use crate::node_check::with_node;
use crate::verbs::{AdminVerbs, RunningJobs, SetupContext, VerbError, VerbReport, must_be_root};
use crate::{openpbs, torque};
use anyhow::{Context as _, Error, Result, ensure};
use batch::call::Location;
use batch::pbs::Installation;
use check::check;
use clap::{FromArgMatches, Subcommand};
use mpsd_core::failure::Refusal;
use mpsd_core::request::Request;
use product::{InstallOptions, ProductOption, ProductVerbs, node};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

static PRODUCTS: [&ProductVerbs; 2] = [&torque::VERBS, &openpbs::VERBS];

#[derive(Debug, Subcommand)]
enum PbsVerb {
    /// Put our scripts (Torque) or our hook (OpenPBS) in place; print what only an administrator
    /// can do
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
    /// Exit status: 0 no FAIL; 2 a FAIL. FAIL and WARN mean what they mean in doctor.
    Check(ProductOption),
    /// Print this node's GPUs as JSON, each of which OpenPBS' hook makes a vnode with shares
    Vnodes,
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

pub const VERBS: AdminVerbs = AdminVerbs {
    command: || {
        PbsVerb::augment_subcommands(clap::Command::new("pbs").about("Torque and OpenPBS"))
            .subcommand_required(true)
            .arg_required_else_help(true)
    },
    run,
    has_own_files: true,
    check: |_, ctx| {
        let here = installations(ctx).filter(Installation::is_here);
        let checks = here.map(|pbs| check(&pbs, verbs(&pbs), &node(ctx), ctx));
        let checks: Vec<_> = checks.collect();
        (!checks.is_empty()).then(|| checks.concat())
    },
};

fn verbs(pbs: &Installation) -> &'static ProductVerbs {
    let its = |verbs: &&&ProductVerbs| verbs.product.scheduler == pbs.product.scheduler;
    PRODUCTS.iter().find(its).copied().unwrap_or(PRODUCTS[0])
}

fn run(matches: &clap::ArgMatches, ctx: &SetupContext<'_>) -> Result<VerbReport, VerbError> {
    let verb = PbsVerb::from_arg_matches(matches).map_err(Error::from)?;
    if matches!(verb, PbsVerb::Install(_) | PbsVerb::Uninstall { .. }) {
        must_be_root("mpsctl pbs", "only root may change the files of a PBS")?;
    }
    let mut report = VerbReport::default();
    let broken = ctx.broken.clone().map_or(Ok(()), Err);
    match &verb {
        // Also under a broken configuration: the hook must know which jobs asked.
        PbsVerb::Request { account, resource } => {
            let projects = &ctx.settings.pbs.projects;
            report.did(request(account, resource, projects).map_err(Error::from)?);
        }
        PbsVerb::Vnodes => {
            broken?;
            let option = ProductOption {
                scheduler: Some(PRODUCTS[1].product.scheduler.name().to_owned()),
            };
            report.did(openpbs::shares::told(&find(&option, ctx)?, ctx)?);
        }
        PbsVerb::Install(options) => {
            broken?;
            let pbs = find(&options.product, ctx)?;
            (verbs(&pbs).install)(&pbs, options, ctx, &mut report)?;
        }
        PbsVerb::Uninstall { product, running } => {
            broken?;
            let pbs = find(product, ctx)?;
            let still = running.allow(ctx)?;
            (verbs(&pbs).uninstall)(&pbs, ctx, &mut report)?;
            report.lines.extend(still);
        }
        PbsVerb::Check(product) => {
            broken?;
            let (pbs, node) = (find(product, ctx)?, node(ctx));
            report = with_node(check(&pbs, verbs(&pbs), &node, ctx), &node, ctx).into();
        }
    }
    Ok(report)
}

fn installations(ctx: &SetupContext<'_>) -> impl Iterator<Item = Installation> {
    let location = Location::of(&ctx.settings);
    let find = move |verbs: &ProductVerbs| Installation::find(verbs.product, &location, ctx.host);
    PRODUCTS.into_iter().map(find)
}

fn find(option: &ProductOption, ctx: &SetupContext<'_>) -> Result<Installation> {
    let name = option.scheduler.as_deref();
    let is_meant =
        |pbs: &Installation| name.is_none_or(|name| name == pbs.product.scheduler.name());
    let named = installations(ctx).filter(is_meant);
    let (mut here, elsewhere): (Vec<_>, Vec<_>) = named.partition(Installation::is_here);
    ensure!(
        here.len() < 2,
        "both Torque and OpenPBS are here; say which with --scheduler"
    );
    here.pop().with_context(|| {
        let homes = elsewhere
            .iter()
            .map(|pbs| format!("'{}'", pbs.mom_priv().display()));
        let homes = homes.collect::<Vec<_>>().join(", no ");
        format!("no {homes}: no PBS mom on this node; set home under [pbs]")
    })
}

/// For the queuejob hook: `resource` (empty: not asked) and the `account` without our words.
fn request(account: &OsStr, resource: &str, projects: &[String]) -> Result<String, Refusal> {
    let by_account = Request::from_account_of(account.as_bytes(), projects)?;
    let by_resource = match resource {
        "" => None,
        text => Some(Request::from_resource(text)?),
    };
    let request = match (by_account, by_resource) {
        (Some(one), Some(other)) => Some(Request::merge(one, other)?),
        (one, other) => one.or(other),
    };
    let text = account.to_string_lossy();
    let is_the_sites = |token: &&str| {
        !token.is_empty() && matches!(Request::from_account_of(token, projects), Ok(None))
    };
    let tokens = text.split([',', ';', ' ', '\t', '\n']);
    let rest: Vec<&str> = tokens.filter(is_the_sites).collect();
    let words = request.as_ref().map(Request::in_resource_words);
    let words = words.unwrap_or_default();
    Ok(serde_json::json!({"resource": words, "account": rest.join(",")}).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_words_move_into_the_resource_and_the_sites_stay() {
        let said = |account: &str, resource| {
            request(account.as_ref(), resource, &[]).unwrap_or_else(|refusal| refusal.to_string())
        };
        let all = "per-node+threads=25+mem=2G";
        let mixed = "proj1,MPS=true,MPS_THREADS=25;MPS_MEM=2G lab";
        for (account, resource, own, moved) in [
            (mixed, "", "proj1,lab", all),
            ("mps_physics", "", "mps_physics", ""),
            ("proj1", "on+mem=2G", "proj1", "per-node+mem=2G"),
        ] {
            let answer = format!(r#"{{"account":"{own}","resource":"{moved}"}}"#);
            assert_eq!(said(account, resource), answer);
        }
        let moved = Request::from_resource(all).unwrap();
        let account = Request::from_account("MPS=true,MPS_THREADS=25,MPS_MEM=2G").unwrap();
        assert_eq!(Some(moved), account);
        assert!(request("MPS=true".as_ref(), "off", &[]).is_err());
        let project = request("mps,MPS=on".as_ref(), "", &["mps".to_owned()]);
        let answer = r#"{"account":"mps","resource":"per-node"}"#;
        assert_eq!(project.as_deref(), Ok(answer));
        assert!(said("MPS=true,MPS_THREADS=101", "").starts_with("MPS_THREADS=101: "));
    }
}
