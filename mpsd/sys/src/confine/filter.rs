//! Programs for the kernel's filter of system calls (seccomp(2),
//! `Documentation/userspace-api/seccomp_filter.rst`).

use nix::libc::{self, sock_filter};

/// Offsets in the kernel's `struct seccomp_data`; of the first argument the low half.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const FIRST_ARGUMENT: u32 = 16;

#[cfg(target_arch = "x86_64")]
const OWN_ARCHITECTURE: u32 = 0xC000_003E; // AUDIT_ARCH_X86_64
#[cfg(target_arch = "aarch64")]
const OWN_ARCHITECTURE: u32 = 0xC000_00B7; // AUDIT_ARCH_AARCH64

/// The x32 ABI has the same architecture, and numbers from here on.
const X32: u32 = 0x4000_0000;

const OTHERS: [i64; 4] = [
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_kcmp,
];
const SURROUNDINGS: [i64; 13] = [
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
];
/// Broad or old interfaces of the kernel that MPS does not use.
const KERNEL: [i64; 18] = [
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_open_by_handle_at,
    libc::SYS_swapon,
    libc::SYS_reboot,
    libc::SYS_quotactl,
];
const PROGRAMS: [i64; 2] = [libc::SYS_execve, libc::SYS_execveat];
const SIGNALS: [i64; 5] = [
    libc::SYS_kill,
    libc::SYS_tkill,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_pidfd_send_signal,
];

const NAMESPACES: i32 = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FilteredProgram {
    /// Programs of the job's user. The vendor's make other calls with each release, so this denies
    /// what none needs.
    User,
    /// Of root, with its process number.
    Worker(u32),
}

/// What the filter denies fails with EPERM.
pub(super) fn program(filtered: FilteredProgram) -> Vec<sock_filter> {
    let mut denied = [&OTHERS[..], &SURROUNDINGS, &KERNEL].concat();
    let mut all = vec![
        load(ARCHITECTURE),
        skip_if(libc::BPF_JEQ, OWN_ARCHITECTURE, 1),
        fail(libc::EPERM),
        load(NUMBER),
    ];
    if cfg!(target_arch = "x86_64") {
        all.extend([skip_unless(libc::BPF_JGE, X32, 1), fail(libc::EPERM)]);
    }
    // A filter cannot read clone3's flags. "No such call" makes the C library use clone(2).
    all.extend([
        skip_unless(libc::BPF_JEQ, number(libc::SYS_clone3), 1),
        fail(libc::ENOSYS),
    ]);
    if let FilteredProgram::Worker(own) = filtered {
        denied.extend(PROGRAMS);
        denied.extend(SIGNALS);
        all.extend(only(libc::SYS_socket, libc::AF_UNIX as u32));
        // abort(3).
        all.extend(only(libc::SYS_tgkill, own));
    }
    for call in denied {
        all.extend([
            skip_unless(libc::BPF_JEQ, number(call), 1),
            fail(libc::EPERM),
        ]);
    }
    all.extend([
        skip_unless(libc::BPF_JEQ, number(libc::SYS_clone), 3),
        load(FIRST_ARGUMENT),
        skip_unless(libc::BPF_JSET, NAMESPACES as u32, 1),
        fail(libc::EPERM),
        allow(),
    ]);
    all
}

fn only(call: i64, first: u32) -> [sock_filter; 5] {
    [
        skip_unless(libc::BPF_JEQ, number(call), 4),
        load(FIRST_ARGUMENT),
        skip_if(libc::BPF_JEQ, first, 1),
        fail(libc::EPERM),
        allow(),
    ]
}

fn number(call: i64) -> u32 {
    u32::try_from(call).unwrap_or(u32::MAX)
}

fn instruction(code: u32, jt: u8, jf: u8, k: u32) -> sock_filter {
    let code = code as u16;
    sock_filter { code, jt, jf, k }
}

fn load(offset: u32) -> sock_filter {
    instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, offset)
}

/// Leaves out the next `count` instructions if the loaded word compares with `k`.
fn skip_if(compare: u32, k: u32, count: u8) -> sock_filter {
    instruction(libc::BPF_JMP | compare | libc::BPF_K, count, 0, k)
}

fn skip_unless(compare: u32, k: u32, count: u8) -> sock_filter {
    instruction(libc::BPF_JMP | compare | libc::BPF_K, 0, count, k)
}

fn fail(errno: i32) -> sock_filter {
    let value = libc::SECCOMP_RET_ERRNO | (errno as u32 & libc::SECCOMP_RET_DATA);
    instruction(libc::BPF_RET | libc::BPF_K, 0, 0, value)
}

fn allow() -> sock_filter {
    instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW)
}

#[cfg(test)]
mod tests {
    //! What the filters decide, calculated without a kernel, and so also for an emulated machine.

    use super::*;

    fn verdict(program: &[sock_filter], architecture: u32, call: u32, first: u32) -> u32 {
        let (mut at, mut loaded) = (0, 0);
        loop {
            let step = &program[at];
            let code = u32::from(step.code);
            at += 1;
            match code & 7 {
                libc::BPF_LD => {
                    loaded = match step.k {
                        0 => call,
                        4 => architecture,
                        16 => first,
                        other => panic!("offset {other}"),
                    }
                }
                libc::BPF_JMP => {
                    let holds = match code & 0xf0 {
                        libc::BPF_JEQ => loaded == step.k,
                        libc::BPF_JGE => loaded >= step.k,
                        libc::BPF_JSET => loaded & step.k != 0,
                        other => panic!("comparison {other:#x}"),
                    };
                    at += usize::from(if holds { step.jt } else { step.jf });
                }
                libc::BPF_RET => return step.k,
                other => panic!("class {other}"),
            }
        }
    }

    /// ptrace, mount, unshare; execve, clone, socket, read, kill, tgkill, by the kernel's sources
    /// (`arch/x86/entry/syscalls/syscall_64.tbl`, `include/uapi/asm-generic/unistd.h`).
    #[cfg(target_arch = "x86_64")]
    const NUMBERS: ([u32; 3], [u32; 6]) = ([101, 165, 272], [59, 56, 41, 0, 62, 234]);
    #[cfg(target_arch = "aarch64")]
    const NUMBERS: ([u32; 3], [u32; 6]) = ([117, 40, 97], [221, 220, 198, 63, 129, 131]);
    /// The same number on every machine.
    const CLONE3: u32 = 435;
    /// The other machine's, and 32-bit x86's (linux/audit.h).
    const FOREIGN: [u32; 2] = [0xC000_003E ^ 0xC000_00B7 ^ OWN_ARCHITECTURE, 0x4000_0003];

    #[test]
    fn each_filter_knows_this_machines_numbers_and_no_other_machines() {
        let errno = |number: i32| libc::SECCOMP_RET_ERRNO | number as u32;
        let (allowed, denied) = (libc::SECCOMP_RET_ALLOW, errno(libc::EPERM));
        let (of_nobody, [execve, clone, socket, read, kill, tgkill]) = NUMBERS;
        let (inet, new_user) = (libc::AF_INET as u32, libc::CLONE_NEWUSER as u32);
        for filtered in [FilteredProgram::User, FilteredProgram::Worker(7)] {
            let program = program(filtered);
            let says = |call, first| verdict(&program, OWN_ARCHITECTURE, call, first);
            for call in of_nobody {
                assert_eq!(says(call, 0), denied, "{filtered:?}: {call}");
            }
            assert_eq!(says(CLONE3, 0), errno(libc::ENOSYS));
            assert_eq!((says(clone, 0), says(clone, new_user)), (allowed, denied));
            assert_eq!(says(read, 0), allowed);
            let is_worker = filtered != FilteredProgram::User;
            let expected = [if is_worker { denied } else { allowed }; 4];
            let calls = [(execve, 0), (socket, inet), (kill, 7), (tgkill, 8)];
            let said = calls.map(|(call, first)| says(call, first));
            assert_eq!(said, expected, "{filtered:?}");
            assert_eq!(says(tgkill, 7), allowed);
            assert_eq!(says(socket, libc::AF_UNIX as u32), allowed);
            for architecture in FOREIGN {
                assert_eq!(verdict(&program, architecture, read, 0), denied);
            }
        }
    }
}
