//! The lines that make a scheduler offer each GPU of a node as so many shares: `mpsctl advertise`.
//!
//! What the Kubernetes device plugin does by itself, an administrator does here by pasting: a scheduler's
//! configuration is the site's. Pure: a node in, text out.

use super::batch_system::{BatchSystem, Offer};
use mpsd_core::Refusal;
use mpsd_core::gpu::Mig;

/// What the administrator adds to the configuration of `system` so that `node` offers its shares.
///
/// # Errors
/// A refusal when nothing is to be offered.
pub fn advertise(system: &dyn BatchSystem, node: &str, offers: &[Offer<'_>]) -> Result<String, Refusal> {
    let total: u32 = offers.iter().map(Offer::shares).sum();
    if total == 0 {
        let why = if offers.is_empty() {
            "it has no GPU"
        } else if offers.iter().all(|offer| offer.replicas.is_none()) {
            "replicas is not set for it in mpsd.toml"
        } else {
            "its GPUs with replicas are in MIG mode, and shares are of whole GPUs"
        };
        let allowed = "replicas = N, for the site, in a [[node]] section with hosts, or in one with product";
        return Err(Refusal::new(format!("shares of node '{node}'"), why, allowed));
    }
    let mut text = left_out(offers);
    text += &system.shares(node, offers, total);
    Ok(text)
}

fn left_out(offers: &[Offer<'_>]) -> String {
    let why = |offer: &Offer<'_>| match offer.replicas {
        Some(_) if offer.gpu.mig != Mig::Off => Some("is in MIG mode".to_owned()),
        Some(wanted) if offer.shares() < wanted => {
            Some(format!("takes {} clients, not {wanted}", offer.clients))
        }
        Some(_) => None,
        None => Some("has no replicas in mpsd.toml".to_owned()),
    };
    let line = |offer: &Offer<'_>| {
        why(offer).map(|why| format!("# GPU {} '{}' {why}\n", offer.gpu.index, offer.gpu.name))
    };
    offers.iter().filter_map(line).collect()
}

#[cfg(test)]
#[path = "advertise_tests.rs"]
mod tests;
