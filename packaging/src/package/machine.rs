//! The architectures that packages are made for, by each of their names.

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Machine {
    /// Debian's amd64.
    #[value(name = "x86_64")]
    X86,
    /// Debian's arm64.
    #[value(name = "aarch64")]
    Arm,
}

impl Machine {
    /// This machine's.
    pub const OWN: Machine = if cfg!(target_arch = "aarch64") {
        Machine::Arm
    } else {
        Machine::X86
    };

    /// As the kernel and RPM name it.
    pub fn name(self) -> &'static str {
        match self {
            Machine::X86 => "x86_64",
            Machine::Arm => "aarch64",
        }
    }

    /// As Debian names it.
    pub fn debian(self) -> &'static str {
        match self {
            Machine::X86 => "amd64",
            Machine::Arm => "arm64",
        }
    }

    /// As Rust names it.
    pub fn triple(self) -> String {
        format!("{}-unknown-linux-gnu", self.name())
    }

    /// Its number in an ELF file's header (`e_machine`).
    pub fn elf(self) -> usize {
        match self {
            Machine::X86 => 62,
            Machine::Arm => 183,
        }
    }
}
