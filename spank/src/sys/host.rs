//! Slurm's plugin ABI, written by hand: `slurm/spank.h` and `slurm/slurm_errno.h`, the same from
//! 22.05 to 26.05 (only additions between them: `spank_prepend_task_argv` in 23.11,
//! `slurm_spank_init_failure_mode` in 25.05).
//!
//! Rust links with BIND_NOW, so each function must be in every program that loads the plugin, from
//! its own `libslurmfull.so`.

use crate::handle::{Context, Item, Level, Slurm};
use mpsd_core::request::Key;
use nix::libc;
use std::ffi::{CStr, CString, OsString, c_char, c_int, c_void};
use std::mem::transmute;
use std::ptr;

/// `spank_t`: opaque, valid during one callback.
pub type Spank = *mut c_void;
/// A C string.
type Text = *const c_char;

const SUCCESS: c_int = 0;

const JOB_ARGV: c_int = 9;

/// `spank_opt_cb_f`: 0 accepts, a negative value refuses; `argument` may be NULL.
pub type OptionCallback = extern "C" fn(value: c_int, argument: Text, remote: c_int) -> c_int;

/// `struct spank_option`. Slurm copies it when it is registered or asked for.
#[repr(C)]
struct RawOption {
    name: Text,
    arginfo: Text,
    /// Must not be NULL.
    usage: Text,
    /// 0 no argument, 1 required, 2 optional, as for getopt_long(3).
    has_arg: c_int,
    val: c_int,
    cb: Option<OptionCallback>,
}

unsafe extern "C" {
    safe fn spank_context() -> c_int;
    fn spank_get_item(spank: Spank, item: c_int, ...) -> c_int;
    fn spank_getenv(spank: Spank, name: Text, buffer: *mut c_char, length: c_int) -> c_int;
    fn spank_setenv(spank: Spank, name: Text, value: Text, overwrite: c_int) -> c_int;
    fn spank_unsetenv(spank: Spank, name: Text) -> c_int;
    /// This and the next crash Slurm outside init and init_post_opt of the local and allocator
    /// contexts (docs/facts/slurm.md#calls-that-crash-slurm).
    fn spank_job_control_setenv(spank: Spank, name: Text, value: Text, overwrite: c_int) -> c_int;
    fn spank_job_control_unsetenv(spank: Spank, name: Text) -> c_int;
    fn spank_option_register(spank: Spank, option: *mut RawOption) -> c_int;
    fn spank_option_getopt(
        spank: Spank,
        option: *mut RawOption,
        argument: *mut *mut c_char,
    ) -> c_int;
    fn slurm_error(format: Text, ...);
    fn slurm_info(format: Text, ...);
    /// Always to the user, without a word like `error:` before it.
    fn slurm_spank_log(format: Text, ...);
}

pub fn context() -> Context {
    // `enum spank_context`, spank.h.
    match spank_context() {
        1 => Context::Local,
        2 => Context::Remote,
        3 => Context::Allocator,
        4 => Context::Slurmd,
        5 => Context::JobScript,
        _ => Context::Unknown,
    }
}

pub fn log(level: Level, line: &str) {
    let Ok(line) = CString::new(format!("mps: {}", line.replace('\0', "?"))) else {
        return;
    };
    let say = match level {
        Level::Error => slurm_error,
        Level::Notice => slurm_spank_log,
        Level::Info => slurm_info,
    };
    // SAFETY: the format takes one string, which lives until the call returns.
    unsafe { say(c"%s".as_ptr(), line.as_ptr()) };
}

/// `None` for NULL. Bytes that are not UTF-8 become characters that no parser here accepts.
///
/// # Safety
/// `text` is NULL or a C string that lives until this returns.
pub unsafe fn text(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: not NULL, and a C string by the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    Some(text.to_string_lossy().into_owned())
}

/// Longest value of a variable that is read. Bytes.
const LONGEST_VALUE: usize = 64 << 10;
const TASK_PROLOG: &CStr = c"task-prolog";

type Setter = unsafe extern "C" fn(Spank, Text, Text, c_int) -> c_int;
type Remover = unsafe extern "C" fn(Spank, Text) -> c_int;

/// Slurm's handle, which only an entry point has while it runs, and its callback for options.
pub struct Handle(pub Spank, pub OptionCallback);

impl Handle {
    fn set(&self, name: &str, value: Option<&str>, set: Setter, remove: Remover) -> bool {
        let (Ok(name), Ok(value)) = (CString::new(name), value.map(CString::new).transpose())
        else {
            return false;
        };
        let rc = match value {
            // SAFETY: the handle is this callback's; Slurm copies both strings.
            Some(value) => unsafe { set(self.0, name.as_ptr(), value.as_ptr(), 1) },
            // SAFETY: the handle is this callback's; the name lives until the call returns.
            None => unsafe { remove(self.0, name.as_ptr()) },
        };
        rc == SUCCESS
    }
}

fn with_option<T>(
    key: Key,
    cb: Option<OptionCallback>,
    call: impl FnOnce(*mut RawOption) -> T,
) -> Option<T> {
    let row = key.row();
    let (value, has_arg) = match row.bare {
        Some(_) => (format!("[{}]", row.value), 2),
        None => (row.value.to_owned(), 1),
    };
    let [name, value, usage] = [row.flag(), value, row.usage()].map(CString::new);
    let (name, value, usage) = (name.ok()?, value.ok()?, usage.ok()?);
    let mut option = RawOption {
        name: name.as_ptr(),
        arginfo: value.as_ptr(),
        usage: usage.as_ptr(),
        has_arg,
        val: key as c_int,
        cb,
    };
    Some(call(&raw mut option))
}

/// For the submitting program's own options, by what Slurm's `cli_filter` plugins use
/// (`src/common/slurm_opt.h`; the same from 22.05 to 26.05). Other programs do not have it.
fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: looks a name up in the program and its libraries, and runs none of their code.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// `opt`, the options of the component that srun has just read; `sropt` exists in srun alone.
fn srun_options() -> Option<*mut c_void> {
    symbol(c"sropt").and(symbol(c"opt"))
}

fn value_of(options: *mut c_void, option: &CStr) -> Option<String> {
    type Get = unsafe extern "C" fn(*mut c_void, Text) -> Text;
    let get = symbol(c"slurm_option_get")?;
    // SAFETY: the function of this name has this type in every release.
    let get: Get = unsafe { transmute(get) };
    // SAFETY: `options` is what it takes; it makes a copy of the value, which is left to the
    // program.
    let value = unsafe { get(options, option.as_ptr()) };
    // SAFETY: NULL or a C string that is never freed.
    unsafe { text(value) }
}

/// The same in srun, sbatch and salloc, each of which has one of these three.
fn submitters_options() -> Option<*mut c_void> {
    let its_own = [c"sropt", c"sbopt", c"saopt"].into_iter().find_map(symbol);
    its_own.and(symbol(c"opt"))
}

impl Slurm for Handle {
    fn context(&self) -> Context {
        context()
    }

    fn item(&self, item: Item) -> Option<u32> {
        let mut value = 0_u32;
        // SAFETY: the handle is this callback's, and each of these items is 32 bits wide (spank.h).
        let rc = unsafe { spank_get_item(self.0, item as c_int, ptr::from_mut(&mut value)) };
        (rc == SUCCESS).then_some(value)
    }

    fn job_env(&self, name: &str) -> Option<String> {
        let name = CString::new(name).ok()?;
        let mut buffer = vec![0_u8; LONGEST_VALUE];
        let length = c_int::try_from(buffer.len()).ok()?;
        // SAFETY: the handle is this callback's; Slurm writes at most `length` bytes with the
        // closing NUL.
        let rc = unsafe { spank_getenv(self.0, name.as_ptr(), buffer.as_mut_ptr().cast(), length) };
        if rc != SUCCESS {
            return None;
        }
        let value = CStr::from_bytes_until_nul(&buffer).ok()?;
        Some(value.to_string_lossy().into_owned())
    }

    fn process_env(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }

    fn all_process_env(&self) -> Vec<(String, String)> {
        let text =
            |(k, v): (OsString, OsString)| Some((k.into_string().ok()?, v.into_string().ok()?));
        std::env::vars_os().filter_map(text).collect()
    }

    fn set_job_env(&mut self, name: &str, value: Option<&str>) -> bool {
        self.set(name, value, spank_setenv, spank_unsetenv)
    }

    fn set_job_control_env(&mut self, name: &str, value: Option<&str>) {
        // These functions crash Slurm elsewhere.
        if matches!(context(), Context::Local | Context::Allocator) {
            let (set, remove) = (spank_job_control_setenv, spank_job_control_unsetenv);
            self.set(name, value, set, remove);
        }
    }

    // The user's own command, not a program of root's.
    #[allow(clippy::disallowed_methods)]
    fn set_process_env(&mut self, name: &str, value: Option<&str>) {
        match value {
            // SAFETY: a callback of srun, sbatch or salloc before anything is submitted; Slurm's
            // man page of spank(8) lets plugins do this there, and no thread of theirs exists yet.
            Some(value) => unsafe { std::env::set_var(name, value) },
            // SAFETY: as above.
            None => unsafe { std::env::remove_var(name) },
        }
    }

    fn step_command(&self) -> Vec<String> {
        let (mut count, mut words): (c_int, *mut *mut c_char) = (0, ptr::null_mut());
        let (to_count, to_words) = (ptr::from_mut(&mut count), ptr::from_mut(&mut words));
        // SAFETY: the handle is this callback's, and this item takes these two (spank.h,
        // `S_JOB_ARGV`).
        let rc = unsafe { spank_get_item(self.0, JOB_ARGV, to_count, to_words) };
        let count = usize::try_from(count).unwrap_or(0);
        if rc != SUCCESS || words.is_null() {
            return Vec::new();
        }
        // SAFETY: Slurm's own array of so many pointers, which lives as long as the step.
        let words = unsafe { std::slice::from_raw_parts(words, count) };
        // SAFETY: each is NULL or a C string of that array.
        let texts = words.iter().map_while(|word| unsafe { text(*word) });
        texts.collect()
    }

    fn command_line(&self) -> Vec<String> {
        let line = std::fs::read("/proc/self/cmdline").unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        line.split('\0').map(str::to_owned).collect()
    }

    fn task_prolog(&self) -> Option<String> {
        value_of(srun_options()?, TASK_PROLOG)
    }

    fn submit_option(&self, option: &CStr) -> Option<Option<String>> {
        type IsSet = unsafe extern "C" fn(*mut c_void, Text) -> bool;
        let (options, is_set) = (submitters_options()?, symbol(c"slurm_option_isset")?);
        // SAFETY: the function of this name has this type in every release.
        let is_set: IsSet = unsafe { transmute(is_set) };
        // SAFETY: `options` is what it takes, and it only reads.
        let is_set = unsafe { is_set(options, option.as_ptr()) };
        Some(is_set.then(|| value_of(options, option).unwrap_or_default()))
    }

    fn set_task_prolog(&mut self, path: &str) {
        type Set = unsafe extern "C" fn(*mut c_void, Text, Text, bool) -> c_int;
        let set = symbol(c"slurm_option_set");
        let symbols = (srun_options(), set, CString::new(path));
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
        let name = program.file_name().unwrap_or_default();
        name.as_encoded_bytes().starts_with(b"sbatch")
    }

    fn register(&mut self, key: Key) {
        with_option(key, Some(self.1), |option| {
            // SAFETY: the handle is this callback's; Slurm copies the option with its texts.
            unsafe { spank_option_register(self.0, option) }
        });
    }

    fn option(&self, key: Key) -> Option<Option<String>> {
        let mut argument: *mut c_char = ptr::null_mut();
        let rc = with_option(key, None, |option| {
            // SAFETY: the handle is this callback's; Slurm copies the option with its texts.
            unsafe { spank_option_getopt(self.0, option, &raw mut argument) }
        });
        // SAFETY: NULL or a string that Slurm keeps as long as its stack.
        (rc == Some(SUCCESS)).then(|| unsafe { text(argument) })
    }

    fn log(&self, level: Level, line: &str) {
        log(level, line);
    }
}
