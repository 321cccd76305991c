//! What a CUDA program sees of a node: which GPUs, how many multiprocessors, how much memory.

use super::node::{Gpu, MIB};

/// A limit as it was set: the device (an index or a UUID) and the value as typed.
pub type MemoryLimit = (String, String);

/// The GPUs in CUDA's order: `CUDA_DEVICE_ORDER=PCI_BUS_ID`, else the fastest first. GPUs that this
/// process may not open do not count.
pub fn counted<'a>(gpus: &[&'a Gpu], order: Option<&str>) -> Vec<&'a Gpu> {
    let mut counted: Vec<&Gpu> = gpus.iter().filter(|gpu| may_open(gpu)).copied().collect();
    if order != Some("PCI_BUS_ID") {
        counted.sort_by_key(|gpu| std::cmp::Reverse(gpu.sms));
    }
    counted
}

/// Whether this process may open the GPU's device file and a MIG device's capabilities. ENXIO (no
/// driver) is a yes.
pub fn may_open(gpu: &Gpu) -> bool {
    const ENXIO: i32 = 6;
    let Some(file) = &gpu.device else {
        return true;
    };
    let opens = |file: &std::path::PathBuf| {
        let opened = std::fs::File::options().read(true).write(true).open(file);
        opened.map_or_else(|error| error.raw_os_error() == Some(ENXIO), |_| true)
    };
    opens(file) && gpu.caps.iter().all(opens)
}

/// What CUDA enumerates of these: one MIG device, and no whole GPU beside it (NVIDIA's MIG guide,
/// "CUDA Device Enumeration": "a single CUDA process can only enumerate a single MIG device", "will
/// not enumerate non-MIG GPU if any compute instance is enumerated").
fn enumerated(gpus: Vec<&Gpu>) -> Vec<&Gpu> {
    let mig = gpus.iter().find(|gpu| is_mig(gpu)).copied();
    mig.map_or(gpus, |mig| vec![mig])
}

fn is_mig(gpu: &Gpu) -> bool {
    gpu.uuid.starts_with("MIG-")
}

/// The GPUs that the variable leaves, in its order. The first name without a GPU ends the list.
pub fn visible<'a>(gpus: &[&'a Gpu], variable: Option<&str>) -> Vec<&'a Gpu> {
    let Some(list) = variable else {
        return enumerated(gpus.to_vec());
    };
    let mut seen: Vec<&Gpu> = Vec::new();
    // Recorded: behind a blank it does not read on, so "0 1" is GPU 0.
    for name in list.split(',') {
        let name = name.split_whitespace().next().unwrap_or_default();
        match find(gpus, name) {
            Some(gpu) if !seen.iter().any(|s| s.uuid == gpu.uuid) => seen.push(gpu),
            _ => break,
        }
    }
    enumerated(seen)
}

/// Always in PCI order (recorded).
pub fn confined<'a>(gpus: &[&'a Gpu], variable: Option<&str>) -> Vec<&'a Gpu> {
    let shown = visible(gpus, variable);
    let is_shown = |gpu: &&&Gpu| shown.iter().any(|shown| shown.uuid == gpu.uuid);
    gpus.iter().filter(is_shown).copied().collect()
}

fn find<'a>(gpus: &[&'a Gpu], name: &str) -> Option<&'a Gpu> {
    if let Ok(index) = name.parse::<usize>() {
        return enumerated(gpus.to_vec()).get(index).copied();
    }
    // By the manuals, the beginning of a UUID is enough only for a GPU.
    let fits = |g: &&&Gpu| match is_mig(g) {
        true => g.uuid == name,
        false => name.starts_with("GPU-") && g.uuid.starts_with(name),
    };
    let mut matches = gpus.iter().filter(fits);
    let first = matches.next().copied();
    first.filter(|_| matches.next().is_none())
}

pub fn percentage(text: &str) -> Option<f64> {
    let number: f64 = text.trim().parse().ok()?;
    (number > 0.0 && number <= 100.0).then_some(number)
}

/// Multiprocessors left by a thread percentage: rounded down to an even number, never under 8.
/// Recorded on 132: 25 gives 32, 10 gives 12, 60 gives 78, 1 gives 8.
pub fn multiprocessors(all: u32, percent: f64) -> u32 {
    let share = f64::from(all) * percent / 100.0;
    ((share + 1e-9) as u32 / 2 * 2).clamp(8.min(all), all)
}

/// A memory limit in bytes: `3G`; any other unit, or none, is MiB (recorded of `3X` and `1024`).
/// `None` if it does not begin with a number.
pub fn memory(text: &str) -> Option<u64> {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let number: u64 = text[..text.len() - unit.len()].parse().ok()?;
    let is_gib = unit.starts_with(['G', 'g']);
    number.checked_mul(if is_gib { 1 << 30 } else { MIB })
}

/// A memory limit as MPS writes it back: whole GiB as `3G` (recorded: `1024M` is read back as
/// `1G`), else `900M`.
pub fn canonical_memory(text: &str) -> Option<String> {
    let mib = memory(text)? / MIB;
    let is_whole = mib.is_multiple_of(1024);
    Some(if is_whole {
        format!("{}G", mib / 1024)
    } else {
        format!("{mib}M")
    })
}

/// The last one applied of those that name the GPU, or its index in the daemon's numbering. The
/// name of a MIG device does not count: limits were "not applied for devices if set by UUID"
/// (NVIDIA/k8s-device-plugin, pull request 572; never recorded).
pub fn daemon_limit<'l>(
    limits: impl Iterator<Item = &'l MemoryLimit>,
    index: usize,
    uuid: &str,
) -> Option<u64> {
    let names = |name: &str| name == uuid && !uuid.starts_with("MIG-") || name.parse() == Ok(index);
    let last = limits.filter(|(name, _)| names(name)).last();
    memory(&last?.1)
}

/// In bytes. `None` if it names a GPU that the client does not see, or makes no sense. The client
/// then runs without any limit, even the daemon's.
pub fn client_limits(variable: &str, seen: &[&Gpu]) -> Option<Vec<Option<u64>>> {
    let mut limits = vec![None; seen.len()];
    for part in variable.split(',').filter(|p| !p.is_empty()) {
        let (name, value) = part.split_once('=')?;
        let bytes = memory(value.trim())?;
        let gpu = find(seen, name.trim()).filter(|gpu| gpu.uuid != name.trim() || !is_mig(gpu))?;
        let at = seen.iter().position(|s| s.uuid == gpu.uuid)?;
        limits[at] = Some(bytes);
    }
    Some(limits)
}

/// Memory of a context alone, in bytes: 27 MiB and 3.69 for each multiprocessor
/// (recorded: 72 MiB on 12, 145 on 32, 315 on 78, 514 on 132).
pub fn context_bytes(multiprocessors: u32) -> u64 {
    (27.0 + 3.69 * f64::from(multiprocessors)).round() as u64 * MIB
}
