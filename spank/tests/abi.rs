//! The file as Slurm's loader sees it: what it exports, what it needs, and the stamp.
// A test may unwrap; clippy knows that of functions marked as tests only.
#![allow(clippy::unwrap_used)]

use object::read::elf::ElfFile64;
use object::{Object as _, ObjectSection as _, ObjectSymbol as _};
use std::collections::BTreeSet;

/// What Slurm looks for. Its loader would call `init` and `fini`, and register `spank_options` as
/// not given in the prolog. Each further callback costs something (see `sys`).
const EXPORTS: &str = "plugin_name plugin_type plugin_version slurm_spank_exit slurm_spank_init \
                       slurm_spank_init_post_opt slurm_spank_job_epilog slurm_spank_job_prolog \
                       slurm_spank_task_exit slurm_spank_task_init";

/// What Slurm must have: all of them since before 22.05. The plugin is linked with BIND_NOW, so a
/// program that lacks one does not load it.
const IMPORTS: &str = "slurm_error slurm_info slurm_spank_log spank_context spank_get_item spank_getenv \
                       spank_job_control_setenv spank_job_control_unsetenv spank_option_getopt \
                       spank_option_register spank_setenv spank_unsetenv";

#[test]
fn it_exports_what_slurm_looks_for_and_needs_only_what_every_release_has() {
    // The library lies beside the directory of the test programs.
    let program = std::env::current_exe().unwrap();
    let profile = program.parent().and_then(|deps| deps.parent()).unwrap();
    let bytes = std::fs::read(profile.join("libspank_mps.so")).unwrap();
    let elf = ElfFile64::<object::Endianness>::parse(&*bytes).unwrap();
    let names = |exported: bool| {
        let symbols = elf.dynamic_symbols();
        let symbols = symbols.filter(|symbol| symbol.is_definition() == exported);
        let names = symbols.map(|symbol| symbol.name().unwrap());
        names
            .filter(|name| !name.is_empty())
            .collect::<BTreeSet<_>>()
    };
    assert_eq!(names(true), EXPORTS.split(' ').collect());
    let of_slurm = |name: &&str| name.starts_with("spank_") || name.starts_with("slurm_");
    let imports: BTreeSet<_> = names(false).into_iter().filter(of_slurm).collect();
    assert_eq!(imports, IMPORTS.split(' ').collect());

    let data = |name: &str| {
        let mut symbols = elf.dynamic_symbols();
        let symbol = symbols.find(|symbol| symbol.name() == Ok(name)).unwrap();
        let section = elf.section_by_name(".rodata").unwrap();
        let data = section.data_range(symbol.address(), symbol.size());
        data.unwrap().unwrap()
    };
    assert_eq!(data("plugin_name"), b"mps\0");
    assert_eq!(data("plugin_type"), b"spank\0");
    let stamp = u32::from_le_bytes(data("plugin_version").try_into().unwrap());
    assert!((0x16_05_00..=0x63_0c_ff).contains(&stamp), "{stamp:#x}");
}
