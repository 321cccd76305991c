//! The node's GPUs as Slurm lists them, and whether tasks are confined to theirs.
//!
//! Read in Slurm's sources (22.05.8 to 26.05.3: `gres_node_config_load`, `_merge_gres2`,
//! `_merge_system_gres_conf`, `gres_use_local_device_index`) and compared with `slurmd -G` by the
//! cells `slurm::devices_list`.

use super::conf::{Conf, Line, is_fetched, is_on, last};
use super::numbers::{DeviceFile, List, Order};
use super::slurmd::Slurmd;
use crate::host::Host;
use mpsd_core::config::HostList;
use mpsd_core::text::split_outside;
use std::path::{Path, PathBuf};

const MOST_FILES: usize = 1024;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gres {
    pub list: List,
    /// Whether a task can open only its own GPUs; `None`: not known.
    pub confined: Option<bool>,
    pub by_uuid: bool,
    /// Slurm leaves `CUDA_VISIBLE_DEVICES` as the user wrote it (`Flags=no_gpu_env` and the like).
    pub unnamed: bool,
    /// A prolog is told one type only (docs/facts/slurm.md#gpus-of-a-job).
    pub several_types: bool,
    /// slurm.conf has a line for this node, with GPUs.
    pub grants: bool,
    /// gres.conf was changed after slurmd began, which may know another list.
    pub outdated: Option<String>,
    /// No gres/shard or gres/mps lets several jobs share a GPU.
    pub unshared: bool,
    /// Without gres/mps or gres/shard, its variable in a step is the user's own.
    pub has_mps: bool,
    pub has_shards: bool,
    pub shards: u32,
    /// The shards of each GPU; `None`: none, or not the same number.
    pub shards_of_each: Option<u32>,
}

#[derive(Debug, Default)]
struct Granted<'l> {
    /// A count for each type of GPU.
    gpus: Vec<(Option<&'l str>, usize)>,
    shards: usize,
}

impl Granted<'_> {
    fn gpu_count(&self) -> usize {
        self.gpus.iter().map(|(_, count)| count).sum()
    }
}

impl Gres {
    /// Reads the files beside slurm.conf, for the node that it calls `node`.
    pub fn read(conf: &Conf, node: &str, host: &dyn Host) -> Result<Self, String> {
        let slurmd = Slurmd::find(node, Some(&conf.file)).filter(Slurmd::is_of_node);
        let dynamic = slurmd.as_ref().and_then(|slurmd| slurmd.dynamic.as_deref());
        let mut gres = Self::of(conf, node, dynamic, host)?;
        gres.outdated = slurmd.and_then(|slurmd| outdated(&conf.file, &slurmd));
        gres.unshared &= gres.outdated.is_none();
        Ok(gres)
    }

    /// The same for a slurmd that began afterwards, with the words of a dynamic node's line.
    pub fn of(
        conf: &Conf,
        node: &str,
        dynamic: Option<&str>,
        host: &dyn Host,
    ) -> Result<Self, String> {
        let gres = conf.beside("gres.conf", host)?;
        let is_shared = |line: &Line| line.is("Name", "shard") || line.is("Name", "mps");
        let leaves = |flags: &str| flags.contains("_gpu_env") && !flags.contains("nvidia_gpu_env");
        let own = || gres.iter().filter(|line| line.is_for(node));
        let flags = || own().filter_map(|line| line.value("Flags"));
        let has = |name| conf.lists("GresTypes", name);
        let (has_mps, has_shards) = (has("mps"), has("shard"));
        let dynamic = dynamic.map(|words| Line::of_node(&conf.file, node, words));
        let granted = granted(conf.lines.iter().chain(&dynamic), node);
        let of = |granted| list(granted, &gres, node, host);
        let list = granted.as_ref().map_err(String::clone).and_then(of);
        let granted = granted.unwrap_or_default();
        let gpus = own().filter(|line| line.is("Name", "gpu"));
        let mut types = gpus.filter_map(|line| line.value("Type"));
        let first = types.next();
        Ok(Self {
            list: list.unwrap_or_else(List::Unknown),
            confined: confined(conf, host),
            by_uuid: flags().any(|flags| flags.contains("env_uuid")),
            unnamed: flags().any(leaves),
            several_types: granted.gpus.len() > 1 || types.any(|other| Some(other) != first),
            grants: !granted.gpus.is_empty(),
            outdated: None,
            unshared: !has_mps && !has_shards && !gres.iter().any(is_shared),
            has_mps,
            has_shards,
            shards: u32::try_from(granted.shards).unwrap_or(u32::MAX),
            shards_of_each: shards_of_each(&gres, node, &granted),
        })
    }
}

/// Why slurmd may know another gres.conf. It knows the copy that it fetched itself.
fn outdated(conf: &Path, slurmd: &Slurmd) -> Option<String> {
    let file = conf.with_file_name("gres.conf");
    let changed = std::fs::metadata(&file).ok()?.modified().ok()?;
    if is_fetched(conf) {
        return None;
    }
    let (pid, shown, began) = (slurmd.pid(), file.display(), slurmd.began()?);
    (changed > began).then(|| format!("'{shown}' was changed after slurmd (pid {pid}) began"))
}

fn confined(conf: &Conf, host: &dyn Host) -> Option<bool> {
    let plugin = conf.value("TaskPlugin").unwrap_or_default();
    if !plugin.contains("cgroup") {
        return Some(false);
    }
    let cgroup = conf.beside("cgroup.conf", host).ok()?;
    Some(last(&cgroup, "ConstrainDevices").is_some_and(is_on))
}

fn list(granted: &Granted<'_>, gres: &[Line], node: &str, host: &dyn Host) -> Result<List, String> {
    // Lines that begin with Name come before those that begin with NodeName.
    let named = gres.iter().filter(|line| line.is_about("Name"));
    let is_ours = |line: &&Line| line.is_about("NodeName") && line.is_for(node);
    let ours = gres.iter().filter(is_ours);
    let with_detection = |line| Some((line, Line::value(line, "AutoDetect")?));
    let global = || gres.iter().rfind(|line| line.is_about("AutoDetect"));
    let detection = ours.clone().find_map(with_detection);
    let detection = detection.or_else(|| global().and_then(with_detection));
    let gpus = named.chain(ours).filter(|line| line.is("Name", "gpu"));
    let lines: Vec<&Line> = gpus.collect();
    let has_several = |line: &&&Line| line.value("MultipleFiles").is_some();
    if let Some(line) = lines.iter().find(has_several) {
        return Err(format!("{} has MultipleFiles", line.place()));
    }
    let how = detection.map(|(line, how)| (line.place(), how.to_ascii_lowercase()));
    let is_other = |how: &str| {
        ["rsmi", "oneapi", "nrt"]
            .iter()
            .any(|one| how.contains(one))
    };
    let is_nvidia = |how: &str| how.contains("nvidia") && !is_other(how);
    let order = match how.as_ref().map(|(place, how)| (place, how.as_str())) {
        None | Some((_, "off")) => return Ok(List::Files(merged(&granted.gpus, &lines, host)?)),
        // The first of these words that it contains (26.05: `_handle_autodetect_flags`).
        Some((_, how)) if how.contains("full") => Order::Either,
        Some((_, how)) if how.contains("nvml") => Order::Bus,
        Some((_, how)) if is_nvidia(how) => Order::Minor,
        Some((place, how)) => return Err(format!("{place} has AutoDetect={how}")),
    };
    // Slurm finds the GPUs by itself. Lines with files name some of them, other lines only types.
    let named = lines.iter().filter(|line| line.value("File").is_some());
    let named = named.map(|line| files(line, host));
    let only = named.collect::<Result<Vec<_>, _>>()?.concat();
    let count = granted.gpu_count();
    let partly = !only.is_empty() && only.len() == count;
    Ok(List::Found {
        count,
        order,
        only: partly.then_some(only),
        entry: how.map(|(place, _)| place).unwrap_or_default(),
    })
}

/// For each kind that slurm.conf grants, the files of its lines, up to its count. Any line
/// fits a kind without a type.
fn merged(
    granted: &[(Option<&str>, usize)],
    lines: &[&Line],
    host: &dyn Host,
) -> Result<Vec<DeviceFile>, String> {
    let lines = lines.iter();
    let with_files = lines.map(|line| files(line, host).map(|files| (line, files)));
    let mut left = with_files.collect::<Result<Vec<_>, _>>()?;
    let mut all = Vec::new();
    for (kind, count) in granted {
        let fits = |line: &Line| kind.is_none_or(|kind| line.is("Type", kind));
        let mut missing = *count;
        while missing > 0 {
            let at = left.iter().position(|(line, _)| fits(line));
            let Some((_, mut files)) = at.map(|at| left.remove(at)) else {
                break;
            };
            files.truncate(missing);
            missing -= files.len();
            all.extend(files);
        }
    }
    if all.is_empty() {
        return Err("gres.conf lists no device file of a GPU of this node".to_owned());
    }
    Ok(all)
}

/// `Gres=gpu:a100:4(S:0),gpu:2,shard:8` of the node's line in slurm.conf.
fn granted<'l>(slurm: impl Iterator<Item = &'l Line>, node: &str) -> Result<Granted<'l>, String> {
    let (mut default, mut found) = (None, None);
    for line in slurm.filter(|line| line.is_about("NodeName")) {
        let names = line.value("NodeName").unwrap_or_default();
        let gres = line.value("Gres");
        if names.eq_ignore_ascii_case("DEFAULT") {
            default = gres.or(default);
        } else if HostList::has(names, node) {
            found = Some(gres.or(default));
        }
    }
    let gres = found.ok_or_else(|| format!("slurm.conf has no line for node '{node}'"))?;
    let gres = gres.ok_or_else(|| format!("slurm.conf grants node '{node}' no Gres"))?;
    let mut granted = Granted::default();
    for entry in parts(gres, ['(', ')']) {
        let parts = entry.split('(').next().unwrap_or_default().split(':');
        let mut parts = parts.filter(|part| !part.eq_ignore_ascii_case("no_consume"));
        let name = parts.next().unwrap_or_default().trim().to_ascii_lowercase();
        if !["gpu", "shard"].contains(&name.as_str()) {
            continue;
        }
        let wrong = || format!("Gres={gres} of node '{node}'");
        let (kind, count) = match parts.collect::<Vec<_>>()[..] {
            [] => (None, 1),
            [one] => one.parse().map_or((Some(one), 1), |count| (None, count)),
            [kind, count] => (Some(kind), count.parse().map_err(|_| wrong())?),
            _ => return Err(wrong()),
        };
        let mut gpus = granted.gpus.iter_mut();
        match gpus.find(|(other, _)| *other == kind) {
            _ if name == "shard" => granted.shards += count,
            Some((_, sum)) => *sum += count,
            None => granted.gpus.push((kind, count)),
        }
    }
    Ok(granted)
}

/// Slurm deals the shards of a line without `File` out evenly.
fn shards_of_each(gres: &[Line], node: &str, granted: &Granted<'_>) -> Option<u32> {
    let is_one = |line: &&Line| line.is_for(node) && line.is("Name", "shard");
    let mut lines = gres.iter().filter(is_one);
    let each = granted.shards.checked_div(granted.gpu_count());
    let each = each.filter(|each| *each > 0)?;
    let even = |line: &Line| line.value("File").is_none() || line.is("Count", &each.to_string());
    lines.all(even).then(|| u32::try_from(each).ok())?
}

fn files(line: &Line, host: &dyn Host) -> Result<Vec<DeviceFile>, String> {
    let list = line.value("File").or_else(|| line.value("Files"));
    let list = list.ok_or_else(|| format!("{} has no File", line.place()))?;
    let paths = expanded(list).ok_or_else(|| format!("{}: File={list}", line.place()))?;
    let device_file = |path: PathBuf| {
        let (minor, entry) = (host.minor(&path), line.place());
        let minor = minor.map_err(|e| format!("{entry}: '{}': {e}", path.display()))?;
        Ok(DeviceFile { path, minor, entry })
    };
    paths.into_iter().map(device_file).collect()
}

/// `/dev/nvidia[0-3,5],/dev/nvidia7`.
fn expanded(list: &str) -> Option<Vec<PathBuf>> {
    let mut all = Vec::new();
    for part in parts(list, ['[', ']']) {
        let Some((head, tail)) = part.split_once('[') else {
            all.push(part.into());
            continue;
        };
        let (numbers, tail) = tail.split_once(']')?;
        for range in numbers.split(',') {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let width = first.len();
            let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
            if last < first || last - first + all.len() > MOST_FILES || tail.contains('[') {
                return None;
            }
            all.extend((first..=last).map(|n| PathBuf::from(format!("{head}{n:0width$}{tail}"))));
        }
    }
    Some(all)
}

fn parts(list: &str, brackets: [char; 2]) -> impl Iterator<Item = &str> {
    let parts = split_outside(list, brackets).map(str::trim);
    parts.filter(|part| !part.is_empty())
}
