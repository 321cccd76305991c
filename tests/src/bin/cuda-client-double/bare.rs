//! A CUDA program without MPS: the whole GPU, and in exclusive mode no other program on it.

use tests::double::node::{Gpu, MIB, Node};
use tests::double::visible;
use tests::double::wire::{CudaError, Granted};

use crate::attach::variable;

#[derive(Debug)]
pub struct Bare {
    node: Node,
    uuids: Vec<String>,
}

impl Bare {
    pub fn open(node: &Node, only: Option<usize>) -> Result<(Bare, Vec<Granted>), CudaError> {
        let all = node.cuda();
        let all: Vec<&Gpu> = all.iter().collect();
        let list = variable("CUDA_VISIBLE_DEVICES");
        let all = visible::counted(&all, variable("CUDA_DEVICE_ORDER").as_deref());
        let seen = visible::visible(&all, list.as_deref());
        if seen.is_empty() {
            return Err(CudaError::of(100));
        }
        let (node, uuids) = (node.clone(), Vec::new());
        let mut bare = Bare { node, uuids };
        let mut granted = Vec::new();
        for (position, gpu) in seen.iter().enumerate() {
            let context = visible::context_bytes(gpu.sms);
            let is_used = only.is_none_or(|used| used == position);
            let taken = if is_used { context } else { 0 };
            if taken > 0 {
                bare.claim(gpu)?;
            }
            let others: u64 = bare.node.contexts(&gpu.uuid).iter().map(|c| c.bytes).sum();
            let free = (gpu.cuda_memory_mib * MIB).saturating_sub(others + context);
            let new = Granted {
                uuid: gpu.uuid.clone(),
                sms: gpu.sms,
                limit: None,
                free,
                taken,
            };
            if taken > 0 {
                bare.register(&new);
            }
            granted.push(new);
        }
        Ok((bare, granted))
    }

    fn claim(&mut self, gpu: &Gpu) -> Result<(), CudaError> {
        let mode = self.node.mode(&gpu.uuid);
        let busy = !self.node.contexts(&gpu.uuid).is_empty();
        if mode == "prohibited" || (mode.starts_with("exclusive") && busy) {
            return Err(CudaError::of(46));
        }
        self.uuids.push(gpu.uuid.clone());
        Ok(())
    }

    pub fn register(&self, gpu: &Granted) {
        let node = &self.node;
        let _ = node.register(&gpu.uuid, std::process::id(), gpu.taken, "bare");
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        for uuid in &self.uuids {
            self.node.unregister(uuid, std::process::id());
        }
    }
}
