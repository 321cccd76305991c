//! What is measured: a number of clients, under MPS with a share of a GPU's threads, or without
//! MPS.

use crate::share::Share;
use mpsd_core::text::count;
use std::fmt;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Configuration {
    pub clients: u32,
    /// The share of each under MPS; `None`: without MPS, where they take turns.
    pub share: Option<Share>,
}

impl Configuration {
    /// A share that limits nothing here is no limit, if that is measured too.
    pub fn measured_as(self, shares: &[Option<Share>], gpus: u32) -> Self {
        let on_a_gpu = self.clients.div_ceil(gpus.max(1));
        let unlimited = self.share.is_some_and(|share| share.of(on_a_gpu).is_none());
        let none = Some(Share::None);
        let measured = unlimited && shares.contains(&none);
        Self {
            share: if measured { none } else { self.share },
            ..self
        }
    }
}

impl fmt::Display for Configuration {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let clients = count(u64::from(self.clients), "client");
        write!(out, "{clients}, {}", label(self.share.as_ref()))
    }
}

/// A column of the table.
pub fn label(share: Option<&impl ToString>) -> String {
    match share.map(ToString::to_string).as_deref() {
        None => "without MPS".to_owned(),
        Some("none") => "MPS".to_owned(),
        Some(share) => format!("MPS, {share}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_that_limits_nothing_is_not_measured_twice() {
        let (none, auto) = (Some(Share::None), Some(Share::Auto));
        let of = |clients, shares: &[Option<Share>], gpus| {
            let what = Configuration {
                clients,
                share: auto,
            };
            what.measured_as(shares, gpus).share
        };
        let both = [None, none, auto];
        assert_eq!([of(2, &both, 1), of(3, &both, 1)], [none, auto]);
        assert_eq!(of(4, &both, 2), none, "two on each GPU");
        assert_eq!(of(2, &[auto], 1), auto, "no limit is not measured");
    }
}
