//! A lab: hosts, and the links between them.

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use tessera_core::{Error, Result};

use crate::host::LabHost;
use crate::link::{LinkShape, LinkTraffic};
use crate::relay::Relay;

/// Counts labs of this process.
static LABS: AtomicU32 = AtomicU32::new(0);

/// Several hosts on one machine. Every two of them have a link, as fast as this machine until it is
/// shaped. All of it is gone when this is dropped.
pub struct Lab {
    hosts: Vec<LabHost>,
    relay: Relay,
    number: u32,
}

impl Lab {
    /// A lab without hosts; `Unsupported` where this machine or user can't have one, and why.
    pub fn new() -> Result<Self> {
        if !rustix::process::geteuid().is_root() {
            return Err(Error::unsupported("a network in a box needs root"));
        }
        if !Path::new("/dev/net/tun").exists() {
            return Err(Error::unsupported("a network in a box needs /dev/net/tun"));
        }
        let number = LABS.fetch_add(1, Ordering::Relaxed);
        let (hosts, relay) = (Vec::new(), Relay::start()?);
        Ok(Self { hosts, relay, number })
    }

    /// Adds a host.
    pub fn add_host(&mut self, name: &str) -> Result<LabHost> {
        let last = u8::try_from(self.hosts.len() + 1);
        let last = last.ok().filter(|last| *last < 255);
        let last = last.ok_or_else(|| Error::full("a lab has at most 254 hosts"))?;
        let namespace = format!("tessera-{}-{}-{last}", std::process::id(), self.number);
        let address = Ipv4Addr::new(10, 213, (self.number % 256) as u8, last);
        let (host, device) = LabHost::create(name, namespace, address)?;
        self.hosts.push(host.clone());
        self.relay.add_port(address, device)?;
        Ok(host)
    }

    /// Shapes the link between two hosts, both directions alike.
    pub fn set_link(&self, a: &LabHost, b: &LabHost, shape: LinkShape) {
        self.set_direction(a, b, shape);
        self.set_direction(b, a, shape);
    }

    /// Shapes one direction of a link.
    pub fn set_direction(&self, from: &LabHost, to: &LabHost, shape: LinkShape) {
        self.relay.set_shape(from.address(), to.address(), shape);
    }

    /// Lays a cable of the kernel's own between two hosts: a link without delay, as fast as this
    /// machine can be. It can't be shaped, and what goes over it is not counted.
    pub fn lay_cable(&self, a: &LabHost, b: &LabHost) -> Result<()> {
        a.lay_cable(b)
    }

    /// What went over one direction of a link.
    pub fn traffic(&self, from: &LabHost, to: &LabHost) -> LinkTraffic {
        self.relay.traffic(from.address(), to.address())
    }

    /// Keeps all bytes that are carried from now on.
    pub fn start_capture(&self) {
        self.relay.start_capture();
    }

    /// The bytes that were carried since then.
    pub fn take_capture(&self) -> Vec<u8> {
        self.relay.take_capture()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for host in &self.hosts {
            if let Err(error) = host.remove() {
                tracing::warn!(host = host.name(), %error, "a host of a lab is left behind");
            }
        }
    }
}
