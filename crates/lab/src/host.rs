//! A host of a lab: a network namespace with one device.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tessera_core::{Error, Result, lock};
use tun_rs::{DeviceBuilder, SyncDevice};

/// What the device of every host is called.
const DEVICE: &str = "lab0";
/// Bytes of the largest packet, as on most networks.
const LARGEST_PACKET: &str = "1500";

/// The namespaces that there are.
static NAMESPACES: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Removes the hosts of all labs of this process, which is about to end.
pub fn remove_all_hosts() {
    let namespaces = std::mem::take(&mut *lock(&NAMESPACES));
    for namespace in namespaces {
        // There is nobody left to hear that it failed.
        run_ip(&["netns", "del", &namespace]).ok();
    }
}

/// A host of a lab.
#[derive(Clone, Debug)]
pub struct LabHost {
    name: String,
    namespace: String,
    address: Ipv4Addr,
}

impl LabHost {
    /// Makes a host, and the device through which it sends.
    pub(crate) fn create(
        name: &str,
        namespace: String,
        address: Ipv4Addr,
    ) -> Result<(Self, SyncDevice)> {
        run_ip(&["netns", "add", &namespace])?;
        lock(&NAMESPACES).insert(namespace.clone());
        let host = Self { name: name.to_owned(), namespace, address };
        let device = host.open_device()?;
        host.ip(&["link", "set", "lo", "up"])?;
        let with_prefix = format!("{address}/24");
        host.ip(&["addr", "add", &with_prefix, "dev", DEVICE])?;
        host.ip(&["link", "set", DEVICE, "mtu", LARGEST_PACKET, "up"])?;
        if let Err(error) = host.use_cubic() {
            tracing::warn!(host = name, %error, "TCP does not use cubic there");
        }
        Ok((host, device))
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its address.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// A program, to be run at this host.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace, program]);
        command
    }

    /// Does something at this host, on a thread of its own.
    pub fn run_inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                self.enter()?;
                Ok(work())
            });
            inside.join().map_err(|_| Error::engine("what was done at a host of a lab panicked"))?
        })
    }

    /// Has this thread be at this host from now on.
    pub fn enter(&self) -> Result<()> {
        let path = format!("/run/netns/{}", self.namespace);
        let fail = |error: &std::io::Error| Error::from_io(&path, error);
        let namespace = File::open(&path).map_err(|error| fail(&error))?;
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|error| fail(&error.into()))
    }

    /// Limits what the host sends with a token bucket: so many bits a second, and a burst of bytes.
    pub fn set_token_bucket(&self, bits: u64, burst: u32) -> Result<()> {
        let (rate, burst) = (format!("{bits}bit"), burst.to_string());
        let mut command = self.command("tc");
        command.args(["qdisc", "replace", "dev", DEVICE, "root", "tbf", "rate", &rate]);
        run_command(command.args(["burst", &burst, "latency", "100ms"]))
    }

    /// Has TCP behave as on most machines, whatever this one does. Namespaces may only use what the
    /// machine allows to all, so that cubic is added there.
    fn use_cubic(&self) -> Result<()> {
        let path = Path::new("/proc/sys/net/ipv4/tcp_allowed_congestion_control");
        let allowed = fs::read_to_string(path);
        let allowed = allowed.map_err(|error| Error::from_io(path.display(), &error))?;
        if !allowed.split_whitespace().any(|name| name == "cubic") {
            let with_cubic = format!("{} cubic", allowed.trim());
            let written = fs::write(path, with_cubic);
            written.map_err(|error| Error::from_io(path.display(), &error))?;
        }
        let set = "echo cubic > /proc/sys/net/ipv4/tcp_congestion_control";
        run_command(self.command("sh").args(["-c", set]))
    }

    /// Lays a cable of the kernel's own to another host, that packets between the two take from now
    /// on.
    pub(crate) fn lay_cable(&self, other: &Self) -> Result<()> {
        let device_to = |host: &Self| format!("cable{}", host.address.octets()[3]);
        let (device, peer) = (device_to(other), device_to(self));
        let ends = ["type", "veth", "peer", "name", &peer, "netns", &other.namespace];
        self.ip(&[&["link", "add", &device][..], &ends].concat())?;
        for (host, device, to) in [(self, &device, other), (other, &peer, self)] {
            host.ip(&["link", "set", device, "up"])?;
            let (to, from) = (format!("{}/32", to.address), host.address.to_string());
            host.ip(&["route", "add", &to, "dev", device, "src", &from])?;
        }
        Ok(())
    }

    fn ip(&self, arguments: &[&str]) -> Result<()> {
        let all = [&["-n", self.namespace.as_str()], arguments].concat();
        run_ip(&all)
    }

    /// Opens the device inside the namespace; this thread's own stays as it is.
    fn open_device(&self) -> Result<SyncDevice> {
        let opened = self.run_inside(|| DeviceBuilder::new().name(DEVICE).build_sync())?;
        opened.map_err(|error| Error::from_io("a device of a lab", &error))
    }

    /// Removes it; programs that still run there lose their network.
    pub(crate) fn remove(&self) -> Result<()> {
        lock(&NAMESPACES).remove(&self.namespace);
        run_ip(&["netns", "del", &self.namespace])
    }
}

fn run_ip(arguments: &[&str]) -> Result<()> {
    run_command(Command::new("ip").args(arguments))
}

fn run_command(command: &mut Command) -> Result<()> {
    let shown = format!("{command:?}").replace('"', "");
    let output = command.output().map_err(|error| Error::from_io(&shown, &error))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Error::unsupported(format!("{shown}: {}", said.trim())))
}
