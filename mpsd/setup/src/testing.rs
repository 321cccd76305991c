//! What the tests of this crate share.

use crate::verbs::SetupContext;
use batch::host::ThisHost;
use std::path::Path;

/// The usual settings on this host, with our programs and our configuration in these places.
pub fn context<'a>(programs: &'a str, config: Option<&'a str>) -> SetupContext<'a> {
    SetupContext {
        config: config.map(Path::new),
        settings: mpsd_core::config::Settings::usual(),
        broken: None,
        programs: Path::new(programs),
        host: &ThisHost,
        inventory: &|_| Err(mpsd_core::Undetermined::new("NVML", "not asked").into()),
        standing: &|_| Vec::new(),
    }
}
