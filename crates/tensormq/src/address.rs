//! Where an inbox is: what others need to send to it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tessera_core::{Device, Error, Result};

use crate::transport::id::Transport;

/// Where an inbox is. It is data: write it down, send it, connect to it from anywhere.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Address {
    /// Name of the inbox.
    pub inbox: String,
    /// Number of its process' endpoint, unique over all processes and restarts.
    pub endpoint_id: u64,
    /// The host, as far as shared memory goes: see [`host_identity`].
    pub host: String,
    /// Where it listens, by the names of the transports that need to be told.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub listeners: BTreeMap<String, ListenAddress>,
    /// The device that whoever receives here reads tensors on, where that is not the CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<Device>,
}

/// Where an inbox listens for one transport.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ListenAddress {
    /// As the transport writes it: `tcp://HOST:PORT`, say.
    pub socket_address: String,
    /// The listener's public key, where it is encrypted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public_key: Option<String>,
    /// The name in the listener's certificate, where it wants TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_name: Option<String>,
}

impl Address {
    /// Where it listens for a transport.
    pub fn listener_of(&self, transport: Transport) -> Option<&ListenAddress> {
        self.listeners.get(transport.name())
    }

    /// The port where it listens for a transport, where that has one.
    pub fn port_of(&self, transport: Transport) -> Option<u16> {
        self.listener_of(transport)?.socket_address.rsplit_once(':')?.1.parse().ok()
    }

    /// The same, listening for a transport here.
    #[must_use]
    pub fn with_listener(mut self, transport: Transport, listener: ListenAddress) -> Self {
        self.listeners.insert(transport.name().to_owned(), listener);
        self
    }
}

/// What tells one host from another: the kernel's boot, its network namespace (names of sockets end
/// there) and the user (others' memory is closed to us).
pub fn host_identity() -> Result<String> {
    let read =
        |path: &str| std::fs::read_to_string(path).map_err(|error| Error::from_io(path, &error));
    let boot = read("/proc/sys/kernel/random/boot_id")?;
    // The thread's, which may be in another one than the process began in.
    let network = "/proc/thread-self/ns/net";
    let network = std::fs::read_link(network).map_err(|error| Error::from_io(network, &error))?;
    let network = network.to_string_lossy();
    let network = network.trim_start_matches("net:[").trim_end_matches(']');
    let user = rustix::process::geteuid().as_raw();
    Ok(format!("{}/{network}/{user}", boot.trim()))
}
