//! A double of NVML: the C functions that `nvml-wrapper` needs. The node is that of the directory
//! of this library.
//!
//! It reads `node.toml` in this directory at each `nvmlInit`. It reads and writes compute modes and
//! contexts at each call, so they are the same for every process and survive it. Each function
//! trusts its caller's pointers, as NVML does.
#![allow(non_snake_case)]
#![expect(
    clippy::missing_safety_doc,
    reason = "as the first lines say, once for all"
)]

mod counters;
mod device;
mod mig;
#[allow(dead_code)]
#[path = "../../src/double/node.rs"]
mod node;

use std::ffi::{CStr, c_char, c_uint, c_void};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use node::{Gpu, Node};

use nvml_wrapper_sys::bindings::nvmlReturn_t as Return;

const SUCCESS: Return = 0;
const UNINITIALIZED: Return = 1;
const INVALID_ARGUMENT: Return = 2;
const NOT_SUPPORTED: Return = 3;
const NO_PERMISSION: Return = 4;
const NOT_FOUND: Return = 6;
const INSUFFICIENT_SIZE: Return = 7;
const DRIVER_NOT_LOADED: Return = 9;
const GPU_IS_LOST: Return = 15;
const UNKNOWN: Return = 999;

/// `nvmlDevice_t`: never followed as a pointer. 1 + index for a GPU; 0x1000 × (1 + index) +
/// instance for a MIG device.
type Device = *mut c_void;

static NODE: Mutex<Option<Node>> = Mutex::new(None);

/// Reads the description.
#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> Return {
    let Some(node) = directory().and_then(|dir| Node::open(&dir).ok()) else {
        return UNKNOWN;
    };
    if node.is.nvml.init_hangs {
        hang();
    }
    if node.is.nvml.init_killed {
        // The worker may signal no process but its own thread.
        let _ = nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL);
    }
    std::thread::sleep(std::time::Duration::from_millis(node.is.times.nvml));
    if node.is.nvml.init_fails {
        return DRIVER_NOT_LOADED;
    }
    if node.is.nvml.init_answers != SUCCESS {
        return node.is.nvml.init_answers;
    }
    let Ok(mut place) = NODE.lock() else {
        return UNKNOWN;
    };
    *place = Some(node);
    SUCCESS
}

/// The directory of this library, as the loader found it.
fn directory() -> Option<PathBuf> {
    // SAFETY: Dl_info is plain data, and zero is a valid value of each of its fields.
    let mut info: nix::libc::Dl_info = unsafe { std::mem::zeroed() };
    let here = nvmlInit_v2 as *const c_void;
    // SAFETY: `here` points into this library, and `info` is ours for the call.
    if unsafe { nix::libc::dladdr(here, &mut info) } == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: dladdr set it to a string that lives as long as this library is loaded.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    let file = Path::new(std::ffi::OsStr::from_bytes(name.to_bytes()));
    file.canonicalize().ok()?.parent().map(Path::to_owned)
}

fn hang() -> ! {
    loop {
        nix::unistd::pause();
    }
}

#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> Return {
    if let Ok(mut node) = NODE.lock() {
        *node = None;
    }
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetDriverVersion(version: *mut c_char, length: c_uint) -> Return {
    // SAFETY: the caller gives room for `length` bytes.
    answer(|| unsafe { text(version, length, &node()?.is.driver_version) })
}

/// The node, unless `nvmlInit` was not called or this call must hang.
fn node() -> Result<Node, Return> {
    let node = NODE.lock().map_err(|_| UNKNOWN)?.clone();
    let node = node.ok_or(UNINITIALIZED)?;
    if node.is.nvml.calls_hang {
        hang();
    }
    Ok(node)
}

/// The part that a handle names: the GPU, or the MIG device as a GPU.
fn part(device: Device) -> Result<(Node, Gpu), Return> {
    let (node, gpu, _) = gpu(device)?;
    let part = match mig::place(device) {
        None => gpu,
        Some((_, number)) => gpu.mig.get(number).ok_or(NOT_FOUND)?.of(&gpu),
    };
    Ok((node, part))
}

/// The GPU behind a handle, or behind that of a MIG device, unless it is lost.
fn gpu(device: Device) -> Result<(Node, Gpu, usize), Return> {
    let node = node()?;
    let index = mig::place(device).map_or((device as usize).wrapping_sub(1), |(gpu, _)| gpu);
    let gpu = node.is.gpu.get(index).cloned().ok_or(INVALID_ARGUMENT)?;
    healthy(&gpu)?;
    Ok((node, gpu, index))
}

fn healthy(gpu: &Gpu) -> Result<(), Return> {
    match gpu.fault.as_str() {
        "lost" => Err(GPU_IS_LOST),
        "gone" => Err(NOT_FOUND),
        _ => Ok(()),
    }
}

/// What a call answers.
fn answer(call: impl FnOnce() -> Result<(), Return>) -> Return {
    call().err().unwrap_or(SUCCESS)
}

/// Room that the caller gives for one value, or null.
type Out<'a, T> = Option<&'a mut MaybeUninit<T>>;

fn put<T>(to: Out<T>, value: T) -> Result<(), Return> {
    to.ok_or(INVALID_ARGUMENT)?.write(value);
    Ok(())
}

/// Writes a string with its final zero.
///
/// # Safety
/// `to` is null or points to room for `length` bytes.
unsafe fn text(to: *mut c_char, length: c_uint, text: &str) -> Result<(), Return> {
    if to.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    if text.len() >= length as usize {
        return Err(INSUFFICIENT_SIZE);
    }
    // SAFETY: not null, the caller promises the room, and the length was checked.
    unsafe { to.copy_from_nonoverlapping(text.as_ptr().cast(), text.len()) };
    // SAFETY: as above; the final zero still fits.
    unsafe { to.add(text.len()).write(0) };
    Ok(())
}

/// Writes a list, and its length in any case.
///
/// # Safety
/// `to` is null or points to room for `count` items.
unsafe fn list<T: Copy>(count: Option<&mut c_uint>, to: *mut T, items: &[T]) -> Result<(), Return> {
    let count = count.ok_or(INVALID_ARGUMENT)?;
    let room = std::mem::replace(count, items.len() as c_uint) as usize;
    if items.is_empty() {
        return Ok(());
    }
    if to.is_null() || room < items.len() {
        return Err(INSUFFICIENT_SIZE);
    }
    // SAFETY: not null, and the caller promises room for `room` items.
    unsafe { to.copy_from_nonoverlapping(items.as_ptr(), items.len()) };
    Ok(())
}

/// # Safety
/// `from` is null or a string with a final zero.
unsafe fn string(from: *const c_char) -> Result<String, Return> {
    if from.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: not null, and the caller promises the final zero.
    let text = unsafe { CStr::from_ptr(from) };
    Ok(text.to_string_lossy().into_owned())
}
