//! [`Slurm`] over the real ABI.

use super::abi::{self, RawOption, Spank};
use super::process::{self, context, text};
use super::srun;
use crate::handle::{Context, Item, Level, Slurm};
use mpsd_core::request::Key;
use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr;

/// Longest value of a variable that is read. Bytes.
const LONGEST_VALUE: usize = 64 << 10;

/// srun's option.
const TASK_PROLOG: &CStr = c"task-prolog";

/// Slurm's handle during one callback.
pub struct Handle {
    raw: Spank,
}

impl Handle {
    /// Only an entry point has such a pointer, and only while it runs.
    pub fn new(raw: Spank) -> Self {
        Self { raw }
    }
}

/// An option's flag as Slurm takes it; the pointers are those of `texts`.
fn raw_option(key: Key, texts: &[CString; 3], cb: Option<abi::OptionCallback>) -> RawOption {
    let [name, value, usage] = texts;
    RawOption {
        name: name.as_ptr(),
        arginfo: value.as_ptr(),
        usage: usage.as_ptr(),
        has_arg: if key.row().bare.is_some() { 2 } else { 1 },
        val: key as c_int,
        cb,
    }
}

fn texts(key: Key) -> Option<[CString; 3]> {
    let row = key.row();
    let value = match row.bare {
        Some(_) => format!("[{}]", row.value),
        None => row.value.to_owned(),
    };
    let text = |text: String| CString::new(text).ok();
    Some([text(row.flag())?, text(value)?, text(row.usage())?])
}

impl Slurm for Handle {
    fn context(&self) -> Context {
        context()
    }

    fn item(&self, item: Item) -> Option<u32> {
        let mut value = 0_u32;
        // SAFETY: the handle is this callback's, and each of these items is 32 bits wide (spank.h).
        let rc = unsafe { abi::spank_get_item(self.raw, item as c_int, ptr::from_mut(&mut value)) };
        (rc == abi::SUCCESS).then_some(value)
    }

    fn job_env(&self, name: &str) -> Option<String> {
        let name = CString::new(name).ok()?;
        let mut buffer = vec![0_u8; LONGEST_VALUE];
        let length = c_int::try_from(buffer.len()).ok()?;
        // SAFETY: the handle is this callback's; Slurm writes at most `length` bytes with the closing NUL.
        let rc = unsafe { abi::spank_getenv(self.raw, name.as_ptr(), buffer.as_mut_ptr().cast(), length) };
        if rc != abi::SUCCESS {
            return None;
        }
        let value = CStr::from_bytes_until_nul(&buffer).ok()?;
        Some(value.to_string_lossy().into_owned())
    }

    fn process_env(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }

    fn all_process_env(&self) -> Vec<(String, String)> {
        std::env::vars_os()
            .filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)))
            .collect()
    }

    fn set_job_env(&mut self, name: &str, value: &str) -> bool {
        let (Ok(name), Ok(value)) = (CString::new(name), CString::new(value)) else {
            return false;
        };
        // SAFETY: the handle is this callback's; Slurm copies both strings.
        unsafe { abi::spank_setenv(self.raw, name.as_ptr(), value.as_ptr(), 1) == abi::SUCCESS }
    }

    fn unset_job_env(&mut self, name: &str) -> bool {
        let Ok(name) = CString::new(name) else {
            return false;
        };
        // SAFETY: the handle is this callback's; the name lives until the call returns.
        unsafe { abi::spank_unsetenv(self.raw, name.as_ptr()) == abi::SUCCESS }
    }

    fn set_script_env(&mut self, name: &str, value: &str) -> bool {
        let here = matches!(context(), Context::Local | Context::Allocator);
        let (true, Ok(name), Ok(value)) = (here, CString::new(name), CString::new(value)) else {
            return false;
        };
        // SAFETY: the handle is this callback's, in one of the two contexts that do not crash; Slurm copies both.
        unsafe { abi::spank_job_control_setenv(self.raw, name.as_ptr(), value.as_ptr(), 1) == abi::SUCCESS }
    }

    fn unset_script_env(&mut self, name: &str) {
        let here = matches!(context(), Context::Local | Context::Allocator);
        if let (true, Ok(name)) = (here, CString::new(name)) {
            // SAFETY: the handle is this callback's, in one of the two contexts that do not crash; the name lives until the call
            // returns. A variable that is not there stays away.
            unsafe { abi::spank_job_control_unsetenv(self.raw, name.as_ptr()) };
        }
    }

    fn command_line(&self) -> Vec<String> {
        let words = std::fs::read("/proc/self/cmdline").unwrap_or_default();
        let words = words.split(|byte| *byte == 0);
        words
            .map(|word| String::from_utf8_lossy(word).into_owned())
            .collect()
    }

    // The user's own command, not a program of root's.
    #[allow(clippy::disallowed_methods)]
    fn set_process_env(&mut self, name: &str, value: Option<&str>) {
        match value {
            // SAFETY: a callback of srun, sbatch or salloc before anything is submitted; Slurm's man page of spank(8) lets
            // plugins do this there, and no thread of theirs exists yet.
            Some(value) => unsafe { std::env::set_var(name, value) },
            // SAFETY: as above.
            None => unsafe { std::env::remove_var(name) },
        }
    }

    fn task_prolog(&self) -> Option<String> {
        srun::get(TASK_PROLOG)
    }

    fn set_task_prolog(&mut self, path: &str) {
        srun::set(TASK_PROLOG, path);
    }

    fn is_batch(&self) -> bool {
        let program = std::env::current_exe().unwrap_or_default();
        program
            .file_name()
            .is_some_and(|name| name.as_encoded_bytes().starts_with(b"sbatch"))
    }

    fn register(&mut self, key: Key) -> bool {
        let Some(texts) = texts(key) else {
            return false;
        };
        let mut option = raw_option(key, &texts, Some(super::guard::option_callback));
        // SAFETY: the handle is this callback's; Slurm copies the option with its texts, which live until the call returns.
        unsafe { abi::spank_option_register(self.raw, &raw mut option) == abi::SUCCESS }
    }

    fn option(&self, key: Key) -> Option<Option<String>> {
        let texts = texts(key)?;
        let mut option = raw_option(key, &texts, None);
        let mut argument: *mut c_char = ptr::null_mut();
        // SAFETY: the handle is this callback's; Slurm copies the option with its texts and keeps the argument it points to.
        let rc = unsafe { abi::spank_option_getopt(self.raw, &raw mut option, &raw mut argument) };
        if rc != abi::SUCCESS {
            return None;
        }
        // SAFETY: NULL or a string that Slurm keeps as long as its stack.
        Some(unsafe { text(argument) })
    }

    fn log(&self, level: Level, line: &str) {
        process::log(level, line);
    }
}
