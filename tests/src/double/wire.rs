//! How the doubles talk to each other: packets over Unix sockets in the pipe directory, with passed
//! descriptors.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::socket::{
    self, AddressFamily, Backlog, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag,
    SockType, UnixAddr, UnixCredentials, sockopt,
};
use serde::{Deserialize, Serialize};

const PACKET: usize = 64 << 10;

#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Attach {
    pub visible: Option<String>,
    pub threads: Option<String>,
    pub memory: Option<String>,
    #[serde(default)]
    pub connections: Option<String>,
    /// It computes with others on several GPUs, as ranks of NCCL do.
    #[serde(default)]
    pub paired: bool,
    /// The one visible GPU on which it opens a context; `None`: all of them.
    pub gpu: Option<usize>,
    pub command: String,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Granted {
    pub uuid: String,
    pub sms: u32,
    pub limit: Option<u64>,
    /// Bytes that it may still allocate.
    pub free: u64,
    /// Bytes that it has taken, with its context; 0 on a GPU that it only enumerated.
    pub taken: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct CudaError {
    pub code: u32,
    pub name: String,
}

impl CudaError {
    pub fn of(code: u32) -> CudaError {
        let name = match code {
            2 => "cudaErrorMemoryAllocation",
            46 => "cudaErrorDevicesUnavailable",
            100 => "cudaErrorNoDevice",
            304 => "cudaErrorOperatingSystem",
            700 => "cudaErrorIllegalAddress",
            719 => "cudaErrorLaunchFailure",
            805 => "cudaErrorMpsConnectionFailed",
            806 => "cudaErrorMpsRpcFailure",
            807 => "cudaErrorMpsServerNotReady",
            808 => "cudaErrorMpsMaxClientsReached",
            809 => "cudaErrorMpsMaxConnectionsReached",
            810 => "cudaErrorMpsClientTerminated",
            915 => "cudaErrorInvalidResourceConfiguration",
            _ => "cudaErrorUnknown",
        };
        let name = name.to_owned();
        CudaError { code, name }
    }
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub enum Reply {
    Granted(Vec<Granted>),
    Done,
    Failed(CudaError),
}

fn socket() -> io::Result<OwnedFd> {
    let (kind, flags) = (SockType::SeqPacket, SockFlag::SOCK_CLOEXEC);
    Ok(socket::socket(AddressFamily::Unix, kind, flags, None)?)
}

/// `CUDA_MPS_PIPE_DIRECTORY`, or the default of NVIDIA's programs.
pub fn pipe_directory() -> PathBuf {
    std::env::var_os("CUDA_MPS_PIPE_DIRECTORY")
        .map_or_else(|| "/tmp/nvidia-mps".into(), PathBuf::from)
}

pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    let fd = socket()?;
    socket::connect(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(fd)
}

pub fn listen(path: &Path) -> io::Result<OwnedFd> {
    let fd = socket()?;
    let address = UnixAddr::new(path)?;
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    socket::bind(fd.as_raw_fd(), &address)?;
    socket::listen(&fd, Backlog::new(128)?)?;
    Ok(fd)
}

pub fn accept(listener: &OwnedFd) -> io::Result<OwnedFd> {
    let fd = socket::accept4(listener.as_raw_fd(), SockFlag::SOCK_CLOEXEC)?;
    // SAFETY: accept4 returned this descriptor and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (kind, flags) = (SockType::SeqPacket, SockFlag::SOCK_CLOEXEC);
    Ok(socket::socketpair(AddressFamily::Unix, kind, None, flags)?)
}

pub fn peer(fd: &OwnedFd) -> io::Result<(u32, u32)> {
    let credentials = socket::getsockopt(fd, sockopt::PeerCredentials)?;
    Ok((credentials.pid() as u32, credentials.uid()))
}

pub fn send(fd: &OwnedFd, packet: &[u8]) -> io::Result<()> {
    send_with(fd, packet, &[])
}

pub fn send_fd(fd: &OwnedFd, packet: &[u8], passed: &OwnedFd) -> io::Result<()> {
    let passed = [passed.as_raw_fd()];
    send_with(fd, packet, &[ControlMessage::ScmRights(&passed)])
}

/// The kernel checks pid, uid and gid. It fails if the user has no name in this user namespace.
pub fn send_credentials(fd: &OwnedFd, packet: &[u8]) -> io::Result<()> {
    let own = UnixCredentials::new();
    send_with(fd, packet, &[ControlMessage::ScmCredentials(&own)])
}

fn send_with(fd: &OwnedFd, packet: &[u8], control: &[ControlMessage]) -> io::Result<()> {
    let (fd, parts) = (fd.as_raw_fd(), [IoSlice::new(packet)]);
    socket::sendmsg::<UnixAddr>(fd, &parts, control, MsgFlags::MSG_NOSIGNAL, None)?;
    Ok(())
}

pub fn recv(fd: &OwnedFd) -> Option<Vec<u8>> {
    recv_fd(fd).map(|(packet, _)| packet)
}

/// Receives one packet and the descriptor that came with it; `None` if the other end is gone.
pub fn recv_fd(fd: &OwnedFd) -> Option<(Vec<u8>, Option<OwnedFd>)> {
    let mut buffer = vec![0; PACKET];
    let mut space = nix::cmsg_space!(RawFd);
    let (length, passed) = loop {
        let mut parts = [IoSliceMut::new(&mut buffer)];
        let (fd, flags) = (fd.as_raw_fd(), MsgFlags::MSG_CMSG_CLOEXEC);
        match socket::recvmsg::<UnixAddr>(fd, &mut parts, Some(&mut space), flags) {
            Ok(message) => break (message.bytes, passed_descriptor(&message)),
            // The other end closed without reading everything. The kernel reports that before what
            // it had still sent.
            Err(Errno::EINTR | Errno::ECONNRESET) => {}
            Err(_) => return None,
        }
    };
    if length == 0 {
        return None;
    }
    buffer.truncate(length);
    Some((buffer, passed))
}

fn passed_descriptor(message: &socket::RecvMsg<'_, '_, UnixAddr>) -> Option<OwnedFd> {
    for part in message.cmsgs().ok()? {
        if let ControlMessageOwned::ScmRights(fds) = part {
            // SAFETY: the kernel has just made this descriptor for us and nothing else owns it.
            return fds.first().map(|fd| unsafe { OwnedFd::from_raw_fd(*fd) });
        }
    }
    None
}
