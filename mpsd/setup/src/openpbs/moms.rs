//! What a mom has of the server's hooks.

use crate::verbs::SetupContext;
use anyhow::{Error, Result};
use batch::pbs::{Installation, MOST_CONF};
use serde_json::Value;
use std::path::PathBuf;

pub const CGROUPS: &str = "pbs_cgroups";

pub fn moms_copy(pbs: &Installation, name: &str, kind: &str) -> PathBuf {
    pbs.mom_priv().join("hooks").join(format!("{name}.{kind}"))
}

/// The mom's copy of a hook, which its jobs get. The server's list shows neither that a copy never
/// arrived nor that an old one stayed after a new import.
pub struct MomsHook {
    pub enabled: bool,
    pub alarm_s: u64,
}

impl MomsHook {
    /// From `NAME=VALUE` lines without those that have the default (read: hook.c). `None`: the mom
    /// has no such hook.
    pub fn read(pbs: &Installation, name: &str, ctx: &SetupContext<'_>) -> Result<Option<Self>> {
        let copy = moms_copy(pbs, name, "HK");
        let text = ctx.host.text(&copy, MOST_CONF).map_err(Error::msg)?;
        let Some(text) = text.filter(|_| copy.with_extension("PY").is_file()) else {
            return Ok(None);
        };
        let value = |name: &str| {
            let mut lines = text.lines();
            lines.find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
        };
        let alarm_s = value("alarm").and_then(|value| value.parse().ok());
        Ok(Some(Self {
            enabled: value("enabled").is_none_or(|value| value.eq_ignore_ascii_case("true")),
            alarm_s: alarm_s.unwrap_or(30),
        }))
    }
}

/// Whether pbs_cgroups, as configured, finds GPUs and writes them into its file (read:
/// pbs_cgroups.PY).
pub fn cgroups_names_gpus(pbs: &Installation, ctx: &SetupContext<'_>) -> Result<bool> {
    let text = ctx.host.text(&moms_copy(pbs, CGROUPS, "CF"), MOST_CONF);
    let text = text.map_err(Error::msg)?.unwrap_or_default();
    let config: Value = serde_json::from_str(&text)?;
    let on = |value: &Value, unset: bool| value.as_bool().unwrap_or(unset);
    Ok(on(&config["cgroup"]["devices"]["enabled"], false) && on(&config["discover_gpus"], true))
}
