//! What the filters decide, reckoned and not asked of a kernel: so it is known of a machine that only an emulator plays as well.

use super::*;

/// What `program` says of a call with this first argument.
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

/// The numbers as the kernel has them (`arch/x86/entry/syscalls/syscall_64.tbl`, `include/uapi/asm-generic/unistd.h`), not as our library:
/// ptrace, mount, unshare, execve, clone, socket, read.
#[cfg(target_arch = "x86_64")]
const NUMBERS: [u32; 7] = [101, 165, 272, 59, 56, 41, 0];
#[cfg(target_arch = "aarch64")]
const NUMBERS: [u32; 7] = [117, 40, 97, 221, 220, 198, 63];
/// The same number on every machine.
const CLONE3: u32 = 435;
/// The other machine's, and 32-bit x86's (linux/audit.h).
const FOREIGN: [u32; 2] = [0xC000_003E ^ 0xC000_00B7 ^ OWN_ARCHITECTURE, 0x4000_0003];

#[test]
fn each_filter_knows_this_machines_numbers_and_no_other_machines() {
    let errno = |number: i32| libc::SECCOMP_RET_ERRNO | number as u32;
    let (allowed, denied) = (libc::SECCOMP_RET_ALLOW, errno(libc::EPERM));
    let [ptrace, mount, unshare, execve, clone, socket, read] = NUMBERS;
    let (inet, new_user) = (libc::AF_INET as u32, libc::CLONE_NEWUSER as u32);
    for whom in [For::User, For::Worker] {
        let program = program(whom);
        let says = |call, first| verdict(&program, OWN_ARCHITECTURE, call, first);
        for call in [ptrace, mount, unshare] {
            assert_eq!(says(call, 0), denied, "{whom:?}: {call}");
        }
        assert_eq!(says(CLONE3, 0), errno(libc::ENOSYS));
        assert_eq!((says(clone, 0), says(clone, new_user)), (allowed, denied));
        assert_eq!(says(read, 0), allowed);
        let of_worker = if whom == For::Worker { denied } else { allowed };
        assert_eq!(
            (says(execve, 0), says(socket, inet)),
            (of_worker, of_worker),
            "{whom:?}"
        );
        assert_eq!(says(socket, libc::AF_UNIX as u32), allowed);
        for architecture in FOREIGN {
            assert_eq!(verdict(&program, architecture, read, 0), denied);
        }
    }
}
