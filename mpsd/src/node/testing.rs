//! What the tests of this crate share.
#![allow(clippy::unwrap_used)]

use super::real::RealNode;
use crate::job::journal::Journal;
use mpsd_core::Paths;
use mpsd_core::config::Settings;
use std::path::Path;
use std::time::Duration;

pub fn node(place: &Path, limit: Duration) -> RealNode {
    let settings = Settings {
        paths: Paths::new(place, place),
        ..Settings::usual()
    };
    RealNode::new("test", &settings, limit, limit)
}

/// As an older release wrote it.
pub fn journal() -> Journal {
    Journal::parse(include_str!("../job/recorded/journal-1.json")).unwrap()
}
