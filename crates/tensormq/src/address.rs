//! Where an inbox is, and how to get there.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tessera_core::{Device, Error, Result};

/// A way from a sender to a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// Within a process: a pointer.
    Thread,
    /// Between processes of a host: shared memory.
    Shm,
    /// Between processes of a host: ZeroMQ with the whole tensor in the message, the baseline.
    ZmqIpc,
    /// Between hosts: ZeroMQ over TCP.
    ZmqTcp,
}

impl Transport {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Thread, Self::Shm, Self::ZmqIpc, Self::ZmqTcp];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Thread => "thread",
            Self::Shm => "shm",
            Self::ZmqIpc => "zmq-ipc",
            Self::ZmqTcp => "zmq-tcp",
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Transport {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|transport| transport.name() == text).ok_or_else(|| {
            let all = Self::ALL.map(Self::name).join(", ");
            Error::usage(format!("unknown transport \"{text}\", expected one of {all}"))
        })
    }
}

/// Where an inbox is. It is data: write it down, send it, connect to it from anywhere.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Address {
    /// Name of the inbox.
    pub inbox: String,
    /// Number of its process' transport, unique over all processes and restarts.
    pub courier: u64,
    /// The host, as far as shared memory goes: see [`host`].
    pub host: String,
    /// Where it listens for ZeroMQ within the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipc: Option<String>,
    /// Where it listens for other hosts, `tcp://HOST:PORT`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp: Option<String>,
    /// The device that whoever receives here reads tensors on, where that is a GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<Device>,
    /// Its public key, where TCP is encrypted (40 characters, ZeroMQ's Z85).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// What tells one host from another: the kernel's boot, its network namespace (names of sockets end
/// there) and the user (others' memory is closed to us).
pub fn host() -> Result<String> {
    let read = |path: &str| std::fs::read_to_string(path).map_err(|error| Error::io(path, &error));
    let boot = read("/proc/sys/kernel/random/boot_id")?;
    // The thread's, which may be in another one than the process began in.
    let network = "/proc/thread-self/ns/net";
    let network = std::fs::read_link(network).map_err(|error| Error::io(network, &error))?;
    let network = network.to_string_lossy();
    let network = network.trim_start_matches("net:[").trim_end_matches(']');
    let user = rustix::process::geteuid().as_raw();
    Ok(format!("{}/{network}/{user}", boot.trim()))
}
