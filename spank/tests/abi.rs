//! The file as Slurm's loader sees it: what it exports, what it needs, where the stamp is.
// A test may unwrap; clippy knows that of functions marked as tests only.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::path::PathBuf;

/// What Slurm looks for. `init` and `fini` would be called by its loader; `spank_options` would be registered as not
/// given in the prolog; each further callback costs something (see `sys`).
const EXPORTS: [&str; 10] = [
    "plugin_name",
    "plugin_type",
    "plugin_version",
    "slurm_spank_exit",
    "slurm_spank_init",
    "slurm_spank_init_post_opt",
    "slurm_spank_job_epilog",
    "slurm_spank_job_prolog",
    "slurm_spank_task_exit",
    "slurm_spank_task_init",
];

/// What Slurm must have: all of them since before 22.05. The plugin is linked with BIND_NOW, so one that a program
/// lacks keeps it from loading.
const IMPORTS: [&str; 13] = [
    "slurm_error",
    "slurm_info",
    "slurm_spank_log",
    "slurm_verbose",
    "spank_context",
    "spank_get_item",
    "spank_getenv",
    "spank_job_control_setenv",
    "spank_job_control_unsetenv",
    "spank_option_getopt",
    "spank_option_register",
    "spank_setenv",
    "spank_unsetenv",
];

/// One entry of `.dynsym`.
struct Symbol {
    name: String,
    defined: bool,
    address: u64,
    size: u64,
}

struct Plugin {
    bytes: Vec<u8>,
    symbols: Vec<Symbol>,
}

impl Plugin {
    fn load() -> Self {
        let bytes = std::fs::read(path()).unwrap();
        let symbols = symbols(&bytes);
        Self { bytes, symbols }
    }

    fn names(&self, defined: bool) -> BTreeSet<&str> {
        let of_kind = self
            .symbols
            .iter()
            .filter(|s| s.defined == defined && !s.name.is_empty());
        of_kind.map(|s| s.name.as_str()).collect()
    }

    /// The bytes of a data symbol: in `.rodata`, where address and offset in the file are the same.
    fn data(&self, name: &str) -> &[u8] {
        let symbol = self.symbols.iter().find(|s| s.name == name && s.defined).unwrap();
        let start = usize::try_from(symbol.address).unwrap();
        &self.bytes[start..start + usize::try_from(symbol.size).unwrap()]
    }
}

/// The library lies beside the directory of the test programs.
fn path() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let profile = program.parent().and_then(|deps| deps.parent()).unwrap();
    profile.join("libspank_mps.so")
}

fn number(bytes: &[u8], at: u64, width: usize) -> u64 {
    let at = usize::try_from(at).unwrap();
    let mut whole = [0_u8; 8];
    whole[..width].copy_from_slice(&bytes[at..at + width]);
    u64::from_le_bytes(whole)
}

/// `.dynsym` of a 64-bit little-endian ELF file.
fn symbols(elf: &[u8]) -> Vec<Symbol> {
    const SHT_DYNSYM: u64 = 11;
    assert_eq!(&elf[..6], b"\x7fELF\x02\x01");
    let (table, size, count) = (number(elf, 0x28, 8), number(elf, 0x3a, 2), number(elf, 0x3c, 2));
    let section = |n: u64| table + n * size;
    let dynsym = (0..count)
        .map(section)
        .find(|at| number(elf, at + 4, 4) == SHT_DYNSYM)
        .unwrap();
    let strings = number(elf, section(number(elf, dynsym + 0x28, 4)) + 0x18, 8);
    let (start, length) = (number(elf, dynsym + 0x18, 8), number(elf, dynsym + 0x20, 8));
    let entries = (start..start + length).step_by(24);
    let symbol = |at: u64| {
        let name = usize::try_from(strings + number(elf, at, 4)).unwrap();
        let end = elf[name..].iter().position(|b| *b == 0).unwrap();
        Symbol {
            name: String::from_utf8(elf[name..name + end].to_vec()).unwrap(),
            defined: number(elf, at + 6, 2) != 0,
            address: number(elf, at + 8, 8),
            size: number(elf, at + 16, 8),
        }
    };
    entries.map(symbol).collect()
}

#[test]
fn it_exports_what_slurm_looks_for_and_nothing_else() {
    assert_eq!(Plugin::load().names(true), BTreeSet::from(EXPORTS));
}

#[test]
fn it_needs_of_slurm_only_what_every_release_has() {
    let plugin = Plugin::load();
    let of_slurm = |name: &&str| name.starts_with("spank_") || name.starts_with("slurm_");
    assert_eq!(
        plugin
            .names(false)
            .into_iter()
            .filter(of_slurm)
            .collect::<BTreeSet<_>>(),
        BTreeSet::from(IMPORTS)
    );
}

#[test]
fn name_type_and_stamp_are_where_they_are_looked_for() {
    let plugin = Plugin::load();
    assert_eq!(plugin.data("plugin_name"), b"mps\0");
    assert_eq!(plugin.data("plugin_type"), b"spank\0");
    let stamp = u32::from_le_bytes(plugin.data("plugin_version").try_into().unwrap());
    assert!((0x16_05_00..=0x63_0c_ff).contains(&stamp), "{stamp:#x}");
}
