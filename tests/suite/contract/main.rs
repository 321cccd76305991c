//! What we believe of NVIDIA's MPS control daemon; a test holds what belongs together.
//! `MPS_SUBJECT=double` (the default) tests the double. `MPS_SUBJECT=nvidia` tests the vendor's
//! program on a machine with a GPU. It needs `MPS_PROBE` and `MPS_LOAD`, the paths of `mps-probe`
//! and `cuda-load`, and `--test-threads=1`. Both need root.

mod bench;
mod client;
mod clients;
mod commands;
mod crashes;
mod doubles;
mod gpus;
mod hidden;
mod limits;
mod namespaces;
mod processes;
mod quit;
mod servers;
mod sharing;
mod start;
mod unverified;
