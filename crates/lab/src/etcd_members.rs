//! etcd in a box: members on loopback ports that are stopped, and started again, at will.

use std::fs::File;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tessera_core::{Error, ErrorKind, Result};

/// How long a member may take until it listens.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// Members of etcd, which end when this is dropped, and leave nothing behind.
///
/// They find out soon that one of them is gone: they elect another within a second.
pub struct EtcdMembers {
    folder: TempDir,
    members: Vec<EtcdMember>,
    tls: Option<EtcdServerFiles>,
}

/// What members show to clients, and whom they believe, in PEM.
#[derive(Clone, Debug)]
pub struct EtcdServerFiles {
    /// Their certificate.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The authority of clients, which must have certificates of theirs.
    pub client_authority: PathBuf,
}

struct EtcdMember {
    name: String,
    client_port: u16,
    peer_port: u16,
    log: PathBuf,
    process: Option<Child>,
}

impl EtcdMembers {
    /// Starts so many members, and waits until they listen. The error is of the kind `Unsupported`
    /// where etcd is not installed.
    pub fn start(count: usize) -> Result<Self> {
        Self::start_with(count, None)
    }

    /// The same with TLS for clients.
    pub fn start_with_tls(count: usize, files: EtcdServerFiles) -> Result<Self> {
        Self::start_with(count, Some(files))
    }

    fn start_with(count: usize, tls: Option<EtcdServerFiles>) -> Result<Self> {
        let found = Command::new("etcd").arg("--version").stdout(Stdio::null()).status();
        if let Err(error) = found {
            let message = format!("etcd is not installed (Debian's etcd-server): {error}");
            return Err(Error::unsupported(message));
        }
        let failed = |error: &std::io::Error| Error::from_io("a box for etcd", error);
        let folder = TempDir::with_prefix("tessera-etcd").map_err(|error| failed(&error))?;
        // All are held until all are chosen, so that no two are the same.
        let mut chosen = Vec::new();
        for _ in 0..2 * count {
            chosen.push(TcpListener::bind("127.0.0.1:0").map_err(|error| failed(&error))?);
        }
        let ports = chosen.iter().map(|port| Ok(port.local_addr()?.port()));
        let ports: Vec<u16> =
            ports.collect::<std::io::Result<_>>().map_err(|error| failed(&error))?;
        drop(chosen);
        let members = ports.chunks_exact(2).enumerate().map(|(place, ports)| EtcdMember {
            name: format!("member{place}"),
            client_port: ports[0],
            peer_port: ports[1],
            log: folder.path().join(format!("member{place}.log")),
            process: None,
        });
        let members = members.collect();
        let mut started = Self { members, folder, tls };
        for place in 0..count {
            started.start_process(place)?;
        }
        for place in 0..count {
            started.wait_for_member(place)?;
        }
        Ok(started)
    }

    /// Where the members answer clients: one URL for each.
    pub fn urls(&self) -> Vec<String> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let urls = self.members.iter().map(|member| client_url(scheme, member));
        urls.collect()
    }

    /// Kills a member (`kill -9`), and waits until it is gone.
    pub fn kill_member(&mut self, place: usize) -> Result<()> {
        let Some(mut process) = self.member(place)?.process.take() else { return Ok(()) };
        let ended = process.kill().and_then(|()| process.wait());
        ended.map(drop).map_err(|error| Error::from_io("kill etcd", &error))
    }

    /// Starts a member that was killed; it has what it had.
    pub fn restart_member(&mut self, place: usize) -> Result<()> {
        if self.member(place)?.process.is_none() {
            self.start_process(place)?;
        }
        self.wait_for_member(place)
    }

    /// Stops a member where it is: its connections stay open, and nobody answers.
    pub fn pause_member(&mut self, place: usize) -> Result<()> {
        self.signal_member(place, Signal::STOP)
    }

    /// Lets a member that was paused go on.
    pub fn resume_member(&mut self, place: usize) -> Result<()> {
        self.signal_member(place, Signal::CONT)
    }

    fn signal_member(&mut self, place: usize, signal: Signal) -> Result<()> {
        let Some(process) = &self.member(place)?.process else { return Ok(()) };
        let failed = |error: &std::io::Error| Error::from_io("signal etcd", error);
        kill_process(Pid::from_child(process), signal).map_err(|error| failed(&error.into()))
    }

    fn member(&mut self, place: usize) -> Result<&mut EtcdMember> {
        let count = self.members.len();
        let missing = || Error::usage(format!("member {place} of etcd: there are {count}"));
        self.members.get_mut(place).ok_or_else(missing)
    }

    fn start_process(&mut self, place: usize) -> Result<()> {
        let peers = self.members.iter().map(|member| format!("{}={}", member.name, member.peer()));
        let peers = peers.collect::<Vec<_>>().join(",");
        let (folder, tls) = (self.folder.path().to_owned(), self.tls.clone());
        let scheme = if tls.is_some() { "https" } else { "http" };
        let member = self.member(place)?;
        let failed = |error: &std::io::Error| Error::from_io("start etcd", error);
        let log = File::options().create(true).append(true).open(&member.log);
        let log = log.map_err(|error| failed(&error))?;
        let mut command = Command::new("etcd");
        for (flag, value) in [
            ("--name", member.name.as_str()),
            ("--listen-client-urls", &client_url(scheme, member)),
            ("--advertise-client-urls", &client_url(scheme, member)),
            ("--listen-peer-urls", &member.peer()),
            ("--initial-advertise-peer-urls", &member.peer()),
            ("--initial-cluster", &peers),
            ("--heartbeat-interval", "50"),
            ("--election-timeout", "500"),
            ("--logger", "zap"),
            ("--log-outputs", "stderr"),
        ] {
            command.args([flag, value]);
        }
        command.arg("--data-dir").arg(folder.join(&member.name));
        if let Some(files) = tls {
            command.arg("--cert-file").arg(&files.certificate).arg("--key-file").arg(&files.key);
            command.arg("--client-cert-auth").arg("--trusted-ca-file").arg(&files.client_authority);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        member.process = Some(command.spawn().map_err(|error| failed(&error))?);
        Ok(())
    }

    /// Waits until a member listens: it does once it has found the others.
    fn wait_for_member(&mut self, place: usize) -> Result<()> {
        let member = self.member(place)?;
        let deadline = Instant::now() + START_TIMEOUT;
        let address = ("127.0.0.1", member.client_port);
        loop {
            if std::net::TcpStream::connect(address).is_ok() {
                return Ok(());
            }
            let ended = member.process.as_mut().map(Child::try_wait);
            let has_ended = matches!(ended, None | Some(Ok(Some(_)) | Err(_)));
            if has_ended || Instant::now() > deadline {
                let said = std::fs::read_to_string(&member.log).unwrap_or_default();
                let last = said.lines().last().unwrap_or("it said nothing").to_owned();
                let message = format!("{} of etcd does not start: {last}", member.name);
                return Err(Error::new(ErrorKind::Engine, message));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl EtcdMember {
    fn peer(&self) -> String {
        format!("http://127.0.0.1:{}", self.peer_port)
    }
}

impl Drop for EtcdMembers {
    fn drop(&mut self) {
        for process in self.members.iter_mut().filter_map(|member| member.process.as_mut()) {
            // One that has ended already is as gone as it should be.
            process.kill().and_then(|()| process.wait()).ok();
        }
    }
}

fn client_url(scheme: &str, member: &EtcdMember) -> String {
    format!("{scheme}://127.0.0.1:{}", member.client_port)
}
