//! [`Slurm`] over the real ABI.

use super::abi::{self, RawOption, Spank, context, text};
use crate::handle::{Context, Item, Level, Slurm};
use mpsd_core::request::Key;
use nix::libc;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::transmute;
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

/// The name, value and usage of an option's flag, as Slurm takes them.
fn option_texts(key: Key) -> Option<[CString; 3]> {
    let row = key.row();
    let value = match row.bare {
        Some(_) => format!("[{}]", row.value),
        None => row.value.to_owned(),
    };
    let text = |text: String| CString::new(text).ok();
    Some([text(row.flag())?, text(value)?, text(row.usage())?])
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

/// srun's own options, through the functions that Slurm's `cli_filter` plugins use (`src/common/slurm_opt.h`; the same
/// from 22.05 to 26.05). They are looked up when needed, because only srun has all of them.
fn srun_symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: looks a name up in the program and its libraries, and runs none of their code.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// `opt`, the options of the component that srun has just read; `sropt` exists in srun alone.
fn srun_options() -> Option<*mut c_void> {
    srun_symbol(c"sropt").and(srun_symbol(c"opt"))
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

    fn set_job_env(&mut self, name: &str, value: Option<&str>) -> bool {
        let (Ok(name), Ok(value)) = (CString::new(name), value.map(CString::new).transpose()) else {
            return false;
        };
        let rc = match value {
            // SAFETY: the handle is this callback's; Slurm copies both strings.
            Some(value) => unsafe { abi::spank_setenv(self.raw, name.as_ptr(), value.as_ptr(), 1) },
            // SAFETY: the handle is this callback's; the name lives until the call returns.
            None => unsafe { abi::spank_unsetenv(self.raw, name.as_ptr()) },
        };
        rc == abi::SUCCESS
    }

    fn set_script_env(&mut self, name: &str, value: Option<&str>) {
        let here = matches!(context(), Context::Local | Context::Allocator);
        let (true, Ok(name), Ok(value)) = (here, CString::new(name), value.map(CString::new).transpose())
        else {
            return;
        };
        match value {
            // SAFETY: the handle is this callback's, in one of the two contexts that do not crash; Slurm copies both.
            Some(value) => unsafe {
                abi::spank_job_control_setenv(self.raw, name.as_ptr(), value.as_ptr(), 1);
            },
            // SAFETY: as above; a variable that is not there is no trouble.
            None => unsafe {
                abi::spank_job_control_unsetenv(self.raw, name.as_ptr());
            },
        }
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

    fn command_line(&self) -> Vec<String> {
        let words = std::fs::read("/proc/self/cmdline").unwrap_or_default();
        let words = words.split(|byte| *byte == 0);
        words
            .map(|word| String::from_utf8_lossy(word).into_owned())
            .collect()
    }

    fn task_prolog(&self) -> Option<String> {
        type Get = unsafe extern "C" fn(*mut c_void, *const c_char) -> *const c_char;
        let (options, get) = (srun_options()?, srun_symbol(c"slurm_option_get")?);
        // SAFETY: the function of this name has this type in every release.
        let get: Get = unsafe { transmute(get) };
        // SAFETY: `options` is what it takes; it makes a copy of the value, which is left to srun.
        let value = unsafe { get(options, TASK_PROLOG.as_ptr()) };
        // SAFETY: NULL or a C string that is never freed.
        unsafe { text(value) }
    }

    fn set_task_prolog(&mut self, path: &str) {
        type Set = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char, bool) -> c_int;
        let symbols = (
            srun_options(),
            srun_symbol(c"slurm_option_set"),
            CString::new(path),
        );
        let (Some(options), Some(set), Ok(path)) = symbols else {
            return;
        };
        // SAFETY: the function of this name has this type in every release.
        let set: Set = unsafe { transmute(set) };
        // SAFETY: `options` is what it takes; Slurm copies the value.
        unsafe { set(options, TASK_PROLOG.as_ptr(), path.as_ptr(), false) };
    }

    fn is_batch(&self) -> bool {
        let program = std::env::current_exe().unwrap_or_default();
        program
            .file_name()
            .is_some_and(|name| name.as_encoded_bytes().starts_with(b"sbatch"))
    }

    fn register(&mut self, key: Key) {
        let Some(texts) = option_texts(key) else { return };
        let mut option = raw_option(key, &texts, Some(super::guard::option_callback));
        // SAFETY: the handle is this callback's; Slurm copies the option with its texts, which live until the call returns.
        unsafe { abi::spank_option_register(self.raw, &raw mut option) };
    }

    fn option(&self, key: Key) -> Option<Option<String>> {
        let texts = option_texts(key)?;
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
        abi::log(level, line);
    }
}
