//! As much of ELF as the packages need: where a dynamic symbol's bytes lie, and which versions of which symbols of other
//! libraries a file wants. 64-bit little endian, as all machines with the vendor's driver are. (System V gABI; LSB,
//! "Symbol Versioning".)

use anyhow::{Context as _, Result, bail};

const SHT_STRTAB: u32 = 3;
const SHT_DYNSYM: u32 = 11;
const SHT_GNU_VERNEED: u32 = 0x6fff_fffe;
/// Size of an entry of the dynamic symbol table.
const SYMBOL: usize = 24;

/// A file's bytes, with its table of sections.
#[derive(Debug)]
pub struct Elf<'a> {
    bytes: &'a [u8],
    sections: Vec<Section>,
}

#[derive(Debug, Clone, Copy)]
struct Section {
    kind: u32,
    address: usize,
    offset: usize,
    size: usize,
    link: usize,
    info: usize,
}

impl<'a> Elf<'a> {
    /// Reads the table of sections.
    ///
    /// # Errors
    /// Not an ELF file of the kind, or one that is cut off.
    pub fn parse(bytes: &'a [u8]) -> Result<Elf<'a>> {
        if bytes.get(..6) != Some(b"\x7fELF\x02\x01") {
            bail!("not a 64-bit little endian ELF file");
        }
        let (at, each, count) = (word(bytes, 40, 8)?, word(bytes, 58, 2)?, word(bytes, 60, 2)?);
        let section = |number: usize| {
            let head = at + number * each;
            Ok(Section {
                kind: u32::try_from(word(bytes, head + 4, 4)?)?,
                address: word(bytes, head + 16, 8)?,
                offset: word(bytes, head + 24, 8)?,
                size: word(bytes, head + 32, 8)?,
                link: word(bytes, head + 40, 4)?,
                info: word(bytes, head + 44, 4)?,
            })
        };
        let sections = (0..count).map(section).collect::<Result<_>>()?;
        Ok(Elf { bytes, sections })
    }

    /// The machine that it is for (`e_machine`).
    ///
    /// # Errors
    /// A file that is cut off.
    pub fn machine(&self) -> Result<usize> {
        word(self.bytes, 18, 2)
    }

    /// Where in the file the bytes of the dynamic symbol `name` lie, and how many there are.
    ///
    /// # Errors
    /// The file does not define it.
    pub fn symbol(&self, name: &str) -> Result<(usize, usize)> {
        let table = self.section(SHT_DYNSYM).context("no dynamic symbols")?;
        for at in (table.offset..table.offset + table.size).step_by(SYMBOL) {
            let home = word(self.bytes, at + 6, 2)?;
            if home == 0 || self.string(table.link, word(self.bytes, at, 4)?)? != name {
                continue;
            }
            let section = self.sections.get(home).context("a symbol without a section")?;
            let (value, size) = (word(self.bytes, at + 8, 8)?, word(self.bytes, at + 16, 8)?);
            let within = value
                .checked_sub(section.address)
                .context("a symbol before its section")?;
            return Ok((section.offset + within, size));
        }
        bail!("no symbol '{name}'")
    }

    /// The versions that the file wants of other libraries, as in `GLIBC_2.28`.
    ///
    /// # Errors
    /// A table that is cut off.
    pub fn wanted_versions(&self) -> Result<Vec<String>> {
        let Some(table) = self.section(SHT_GNU_VERNEED) else {
            return Ok(Vec::new());
        };
        let mut versions = Vec::new();
        let mut file = table.offset;
        for _ in 0..table.info {
            let mut version = file + word(self.bytes, file + 8, 4)?;
            for _ in 0..word(self.bytes, file + 2, 2)? {
                versions.push(
                    self.string(table.link, word(self.bytes, version + 8, 4)?)?
                        .to_owned(),
                );
                version += word(self.bytes, version + 12, 4)?;
            }
            file += word(self.bytes, file + 12, 4)?;
        }
        Ok(versions)
    }

    fn section(&self, kind: u32) -> Option<Section> {
        self.sections.iter().find(|section| section.kind == kind).copied()
    }

    fn string(&self, table: usize, at: usize) -> Result<&str> {
        let table = self.sections.get(table).filter(|table| table.kind == SHT_STRTAB);
        let table = table.context("no table of strings")?;
        let rest = self
            .bytes
            .get(table.offset + at..)
            .context("a string outside of the file")?;
        let end = rest
            .iter()
            .position(|byte| *byte == 0)
            .context("a string without an end")?;
        std::str::from_utf8(&rest[..end]).context("a name that is not text")
    }
}

/// The little endian number of `size` bytes at `at`.
fn word(bytes: &[u8], at: usize, size: usize) -> Result<usize> {
    let part = at
        .checked_add(size)
        .and_then(|end| bytes.get(at..end))
        .context("the file is cut off")?;
    let value = part
        .iter()
        .rev()
        .fold(0_u64, |value, byte| value << 8 | u64::from(*byte));
    usize::try_from(value).context("a number beyond this machine's")
}

/// `GLIBC_2.28` as numbers; none if it is of another library, or private.
pub fn glibc(version: &str) -> Option<(u32, u32)> {
    let (major, minor) = version.strip_prefix("GLIBC_")?.split_once('.')?;
    let minor = minor.split('.').next()?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::package::machine::Machine;

    #[test]
    fn reads_this_program() {
        let own = std::fs::read("/proc/self/exe").unwrap();
        let elf = Elf::parse(&own).unwrap();
        let versions = elf.wanted_versions().unwrap();
        assert!(
            versions.iter().any(|version| glibc(version).is_some()),
            "{versions:?}"
        );
        assert!(elf.symbol("no_such_symbol").is_err());
        assert_eq!(elf.machine().unwrap(), Machine::OWN.elf());
    }

    #[test]
    fn a_file_cut_off_anywhere_is_an_error_and_no_panic() {
        let own = std::fs::read("/proc/self/exe").unwrap();
        for length in [0, 5, 6, 63, 64, 1000] {
            let outcome = Elf::parse(&own[..length]).and_then(|elf| elf.wanted_versions());
            assert!(outcome.is_err(), "{length}");
        }
    }

    #[test]
    fn orders_versions_by_number() {
        assert_eq!(glibc("GLIBC_2.28"), Some((2, 28)));
        assert_eq!(glibc("GLIBC_2.2.5"), Some((2, 2)));
        assert!(glibc("GLIBC_2.4") < glibc("GLIBC_2.28"));
        assert_eq!(glibc("GCC_3.0"), None);
        assert_eq!(glibc("GLIBC_PRIVATE"), None);
    }
}
