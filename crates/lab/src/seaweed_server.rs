//! S3 in a box: SeaweedFS on loopback ports.

use std::fs::File;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tessera_core::{Error, ErrorKind, Result};

/// How long it may take until it answers.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// What `scripts/fetch-seaweedfs` makes, in the folder of the project or above that of a crate.
const FETCHED_PROGRAM: &str = ".seaweedfs/weed";
/// What it lets in.
const ACCESS_KEY: &str = "tessera";
const SECRET_KEY: &str = "only-for-tests";
/// What it shows to clients over https, in its folder.
const CERTIFICATE_FILE: &str = "certificate.pem";
const KEY_FILE: &str = "key.pem";
/// What each of its ports is for, as its flags have it.
const PORTS: [&str; 8] = [
    "-master.port",
    "-master.port.grpc",
    "-volume.port",
    "-volume.port.grpc",
    "-filer.port",
    "-filer.port.grpc",
    "-s3.port.grpc",
    "-s3.port",
];

/// A server that speaks S3, which ends when this is dropped, and leaves nothing behind.
pub struct SeaweedServer {
    folder: TempDir,
    ports: Vec<u16>,
    is_secured: bool,
    process: Option<Child>,
}

impl SeaweedServer {
    /// Starts one, and waits until it answers. The error is of the kind `Unsupported` where
    /// SeaweedFS is not there.
    pub fn start() -> Result<Self> {
        Self::start_with(None)
    }

    /// The same over https alone, with this certificate and its key as PEM.
    pub fn start_secured(certificate_pem: &str, key_pem: &str) -> Result<Self> {
        Self::start_with(Some([certificate_pem, key_pem]))
    }

    fn start_with(certificate: Option<[&str; 2]>) -> Result<Self> {
        let failed = |error: &std::io::Error| Error::from_io("a box for SeaweedFS", error);
        let folder = TempDir::with_prefix("tessera-s3").map_err(|error| failed(&error))?;
        // All are held until all are chosen, so that no two are the same.
        let chosen: std::io::Result<Vec<TcpListener>> =
            PORTS.iter().map(|_| TcpListener::bind("127.0.0.1:0")).collect();
        let chosen = chosen.map_err(|error| failed(&error))?;
        let ports = chosen.iter().map(|port| Ok(port.local_addr()?.port()));
        let ports: std::io::Result<Vec<u16>> = ports.collect();
        drop(chosen);
        let ports = ports.map_err(|error| failed(&error))?;
        let identity = format!(
            r#"{{"identities":[{{"name":"test","credentials":[{{"accessKey":"{ACCESS_KEY}",
            "secretKey":"{SECRET_KEY}"}}],"actions":["Admin","Read","Write","List"]}}]}}"#
        );
        let written = std::fs::write(folder.path().join("s3.json"), identity);
        written.map_err(|error| failed(&error))?;
        for (file, pem) in [CERTIFICATE_FILE, KEY_FILE].iter().zip(certificate.iter().flatten()) {
            let written = std::fs::write(folder.path().join(file), pem);
            written.map_err(|error| failed(&error))?;
        }
        let is_secured = certificate.is_some();
        let mut server = Self { folder, ports, is_secured, process: None };
        server.start_again()?;
        Ok(server)
    }

    /// Starts it after it was killed; it has what it had.
    pub fn start_again(&mut self) -> Result<()> {
        if self.process.is_none() {
            self.process = Some(self.start_process()?);
        }
        self.wait_until_it_answers()
    }

    /// Kills it.
    pub fn kill(&mut self) -> Result<()> {
        let Some(mut process) = self.process.take() else { return Ok(()) };
        let ended = process.kill().and_then(|()| process.wait());
        ended.map(drop).map_err(|error| Error::from_io("kill SeaweedFS", &error))
    }

    /// What programs that use it have in their environment. Buckets are made when they are needed.
    pub fn environment(&self) -> [(&'static str, String); 4] {
        let scheme = if self.is_secured { "https" } else { "http" };
        [
            ("AWS_ACCESS_KEY_ID", ACCESS_KEY.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", SECRET_KEY.to_owned()),
            ("AWS_ENDPOINT", format!("{scheme}://127.0.0.1:{}", self.port())),
            ("AWS_REGION", "us-east-1".to_owned()),
        ]
    }

    fn port(&self) -> u16 {
        self.ports.last().copied().unwrap_or_default()
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("log.txt")
    }

    fn start_process(&self) -> Result<Child> {
        let failed = |error: &std::io::Error| Error::from_io("start SeaweedFS", error);
        let log = File::options().create(true).append(true).open(self.log());
        let log = log.map_err(|error| failed(&error))?;
        let mut command = Command::new(find_program()?);
        command.arg("server").arg(format!("-dir={}", self.folder.path().display()));
        for (flag, port) in PORTS.iter().zip(&self.ports) {
            command.arg(format!("{flag}={port}"));
        }
        command.args(["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3", "-s3.config=s3.json"]);
        command.args(["-s3.autoCreateBucket=true", "-s3.port.iceberg=0", "-s3.port.lance=0"]);
        // Nobody hears of it, and it does not take the disk for its own.
        command.args(["-master.telemetry=false", "-master.volumeSizeLimitMB=64", "-volume.max=8"]);
        if self.is_secured {
            command.arg(format!("-s3.cert.file={CERTIFICATE_FILE}"));
            command.arg(format!("-s3.key.file={KEY_FILE}"));
        }
        command.current_dir(self.folder.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        command.spawn().map_err(|error| failed(&error))
    }

    fn wait_until_it_answers(&mut self) -> Result<()> {
        let (deadline, address) = (Instant::now() + START_TIMEOUT, ("127.0.0.1", self.port()));
        loop {
            // It listens before it knows whom it lets in.
            if TcpStream::connect(address).is_ok() && self.has_started() {
                return Ok(());
            }
            let ended = self.process.as_mut().map(Child::try_wait);
            let has_ended = matches!(ended, None | Some(Ok(Some(_)) | Err(_)));
            if has_ended || Instant::now() > deadline {
                let said = std::fs::read_to_string(self.log()).unwrap_or_default();
                let last = said.lines().last().unwrap_or("it said nothing").to_owned();
                let message = format!("SeaweedFS does not start: {last}");
                return Err(Error::new(ErrorKind::Engine, message));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Whether all of its parts know each other.
    fn has_started(&self) -> bool {
        let said = std::fs::read_to_string(self.log()).unwrap_or_default();
        said.contains("the cluster has 1 filer")
    }
}

impl Drop for SeaweedServer {
    fn drop(&mut self) {
        // One that has ended already is as gone as it should be.
        self.kill().ok();
        // It leaves the sockets of its ports beside the folders of others.
        let entries = std::fs::read_dir(std::env::temp_dir()).into_iter().flatten();
        for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let is_ours = |port: &u16| name.ends_with(&format!("-{port}.sock"));
            if name.starts_with("seaweedfs-") && self.ports.iter().any(is_ours) {
                std::fs::remove_file(&path).ok();
            }
        }
    }
}

/// The program: that of `PATH`, or what was fetched.
fn find_program() -> Result<PathBuf> {
    let on_path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&on_path).map(|folder| folder.join("weed"));
    let here = std::env::current_dir().unwrap_or_default();
    let fetched = here.ancestors().map(|folder: &Path| folder.join(FETCHED_PROGRAM));
    on_path.chain(fetched).find(|path| path.is_file()).ok_or_else(|| {
        Error::unsupported(
            "SeaweedFS is not there: scripts/fetch-seaweedfs puts it into .seaweedfs/",
        )
    })
}
