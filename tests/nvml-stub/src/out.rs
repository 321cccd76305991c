//! Writing through the pointers that a C caller gives.

use std::ffi::{CStr, c_char, c_uint};

use crate::{INSUFFICIENT_SIZE, INVALID_ARGUMENT, Return};

/// Writes one value.
///
/// # Safety
/// `to` is null or points to room for a `T`.
pub unsafe fn value<T>(to: *mut T, value: T) -> Result<(), Return> {
    if to.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: not null, and the caller promises the room.
    unsafe { to.write(value) };
    Ok(())
}

/// Writes a string with its final zero.
///
/// # Safety
/// `to` is null or points to room for `length` bytes.
pub unsafe fn text(to: *mut c_char, length: c_uint, text: &str) -> Result<(), Return> {
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

/// Writes a list: with no room, or too little, only its length.
///
/// # Safety
/// `count` is null or points to a number, and `to` is null or to room for that many `T`.
pub unsafe fn list<T: Copy>(count: *mut c_uint, to: *mut T, items: &[T]) -> Result<(), Return> {
    if count.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: not null, and the caller promises a number there.
    let room = unsafe { count.read() } as usize;
    // SAFETY: as above.
    unsafe { count.write(items.len() as c_uint) };
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

/// Reads a string.
///
/// # Safety
/// `from` is null or a string with a final zero.
pub unsafe fn string(from: *const c_char) -> Result<String, Return> {
    if from.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: not null, and the caller promises the final zero.
    Ok(unsafe { CStr::from_ptr(from) }.to_string_lossy().into_owned())
}
