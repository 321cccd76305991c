//! The probe's report, and the expectations that it does not meet. Pure: no CUDA, no NVML.

use std::fmt::Write as _;

use mpsd::cli::programs::{Probe as Options, least_mib};
use serde::Serialize;

#[derive(Debug, Clone, Serialize)]
pub struct ProbeReport {
    pub host: String,
    pub pid: u32,
    pub uid: u32,
    pub local_rank: Option<u32>,
    pub pipe_directory: Option<String>,
    pub under_mps: bool,
    pub context_ms: u64,
    pub gpus: Vec<GpuReport>,
    pub unmet: Vec<String>,
}

#[derive(Debug, Clone, Serialize)]
pub struct GpuReport {
    pub index: u32,
    #[serde(flatten)]
    pub facts: Facts,
    /// NVML lists this pid among the device's MPS clients; `None`: it does not answer.
    pub mps_listed: Option<bool>,
    pub allocatable_mib: Option<u64>,
    /// The cap ended the allocation, not the driver.
    pub allocation_capped: bool,
    pub memset_ok: bool,
}

#[derive(Debug, Clone, Serialize)]
pub struct Facts {
    pub uuid: String,
    pub name: String,
    /// Under MPS those of its share.
    pub sms: u32,
    pub total_mib: u64,
    /// Under a memory limit it counts down from the limit.
    pub free_mib: u64,
    /// The driver's MPS_ENABLED; `None`: before driver 545.
    pub mps_attribute: Option<bool>,
}

impl GpuReport {
    /// NVML does not know a client in a pid namespace, and older drivers lack the attribute.
    pub fn under_mps(&self) -> bool {
        self.facts.mps_attribute == Some(true) || self.mps_listed == Some(true)
    }
}

pub fn unmet(gpu: &GpuReport, expected: &Options) -> Vec<String> {
    let sms = gpu.facts.sms;
    let got = gpu.allocatable_mib.unwrap_or(0);
    let mut found = Vec::new();
    let mut check = |holds: bool, why: String| {
        if !holds {
            found.push(format!("GPU {} {:?}: {why}", gpu.index, gpu.facts.uuid));
        }
    };
    check(
        gpu.memset_ok,
        "what was read back is not what was written".into(),
    );
    let under_mps = gpu.under_mps() || !expected.require_mps;
    check(under_mps, "the context does not go through MPS".into());
    if let Some(expected) = expected.expect_sms {
        let why = format!("{sms} multiprocessors are visible, {expected} were expected");
        check(sms == expected, why);
    }
    if let Some(limit) = expected.expect_mem {
        let least = least_mib(limit, sms);
        let why = format!("{got} MiB could be allocated, {least} to {limit} were expected");
        check((least..=limit).contains(&got), why);
    }
    found
}

pub fn text(report: &ProbeReport) -> String {
    let ProbeReport {
        pid,
        uid,
        host,
        context_ms,
        ..
    } = report;
    let rank = report
        .local_rank
        .map_or(String::new(), |rank| format!(", local rank {rank}"));
    let pipe = report.pipe_directory.as_deref().unwrap_or("not set");
    let not = if report.under_mps { "" } else { "not " };
    let mut out = format!(
        "{not}under MPS, pid {pid} uid {uid} on {host}{rank}\nCUDA_MPS_PIPE_DIRECTORY {pipe}\ncontext after {context_ms} ms\n"
    );
    out += "GPU UUID                                      SMS  TOTAL MIB   FREE MIB    ALLOCATED MEMSET NAME\n";
    for gpu in &report.gpus {
        let Facts {
            uuid,
            name,
            sms,
            total_mib,
            free_mib,
            ..
        } = &gpu.facts;
        let allocated = match gpu.allocatable_mib {
            None => String::from("-"),
            Some(mib) if gpu.allocation_capped => format!(">={mib} MiB"),
            Some(mib) => format!("{mib} MiB"),
        };
        let memset = if gpu.memset_ok { "ok" } else { "WRONG" };
        // Writing to a String does not fail.
        let _ = writeln!(
            out,
            "{:<3} {uuid:<40} {sms:>4} {total_mib:>10} {free_mib:>10} {allocated:>12} {memset:<6} {name}",
            gpu.index
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    fn gpu(sms: u32, mib: u64) -> GpuReport {
        GpuReport {
            index: 0,
            facts: Facts {
                uuid: "GPU-200b4359-5562-4e0e-ed46-88b581af6524".into(),
                name: "NVIDIA H200".into(),
                sms,
                total_mib: 143_155,
                free_mib: 2927,
                mps_attribute: None,
            },
            mps_listed: Some(true),
            allocatable_mib: Some(mib),
            allocation_capped: false,
            memset_ok: true,
        }
    }

    #[test]
    fn expectations_are_checked_one_by_one() {
        let all = ["--require-mps", "--expect-sms=32", "--expect-mem=3072"];
        let outside = GpuReport {
            mps_listed: Some(false),
            ..gpu(132, 3328)
        };
        let broken = GpuReport {
            memset_ok: false,
            ..gpu(32, 2816)
        };
        let few = ["2368 MiB could be allocated, 2429 to 3072 were expected"];
        let more = ["2816 MiB could be allocated, 3118 to 3392 were expected"];
        let all_words = [
            "the context does not go through MPS",
            "132 multiprocessors are visible, 32 were expected",
            "3328 MiB could be allocated, 2429 to 3072 were expected",
        ];
        for (gpu, given, words) in [
            (gpu(32, 2816), &all[..], &[][..]),
            (gpu(132, 2432), &all[2..], &[]),
            (gpu(132, 2368), &all[2..], &few),
            (outside, &all, &all_words),
            (broken, &[], &["what was read back is not what was written"]),
            (gpu(32, 2816), &["--expect-mem=3392"], &more),
        ] {
            let options = Options::parse_from([&["mps-probe"], given].concat());
            let found = unmet(&gpu, &options);
            assert_eq!(found.len(), words.len(), "{found:?}");
            let mut both = found.iter().zip(words);
            assert!(both.all(|(found, words)| found.ends_with(words)));
        }
    }
}
