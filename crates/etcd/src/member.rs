//! A connection to one member of etcd.

use std::error::Error as StdError;
use std::sync::Mutex;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tessera_core::{Error, ErrorKind, Result, lock};
use tokio::net::TcpStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tower::service_fn;

use crate::config::{EtcdTlsFiles, MemberAddress};

/// How long a connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// One member of etcd.
///
/// It is not asked with HTTP/2 pings whether it is there: members take offence at those that come
/// more often than each five seconds. A call that is not answered in time opens a new connection.
pub(crate) struct Member {
    address: MemberAddress,
    tls: Option<EtcdTlsFiles>,
    channel: Mutex<Channel>,
}

/// Why a call failed at a member.
#[derive(Debug)]
pub(crate) struct MemberFailure {
    pub(crate) error: Error,
    /// Whether another member may do better.
    pub(crate) is_passing: bool,
}

impl Member {
    /// Connects when it is first called; in the runtime of whoever calls this.
    pub(crate) fn new(address: MemberAddress, tls: Option<&EtcdTlsFiles>) -> Result<Self> {
        let tls = tls.filter(|_| address.uses_tls).cloned();
        if let Some(files) = &tls {
            // What is wrong with the files is said now, and not with every call.
            files.make_connector()?;
        }
        let channel = Mutex::new(open_channel(&address, tls.as_ref()));
        Ok(Self { address, tls, channel })
    }

    pub(crate) fn url(&self) -> &str {
        &self.address.url
    }

    pub(crate) fn channel(&self) -> Channel {
        lock(&self.channel).clone()
    }

    /// Has the next call open a connection of its own: this one may lead nowhere any more.
    pub(crate) fn reconnect(&self) {
        *lock(&self.channel) = open_channel(&self.address, self.tls.as_ref());
    }

    /// What a refusal of this member means.
    pub(crate) fn failure(&self, status: &Status) -> MemberFailure {
        let (kind, is_passing) = match status.code() {
            Code::InvalidArgument | Code::PermissionDenied | Code::Unauthenticated => {
                (ErrorKind::Usage, false)
            }
            // A lease that is gone, a revision that was compacted.
            Code::NotFound | Code::OutOfRange => (ErrorKind::NotFound, false),
            Code::ResourceExhausted => (ErrorKind::Full, false),
            Code::Unimplemented => (ErrorKind::Unsupported, false),
            Code::DataLoss => (ErrorKind::Corrupt, false),
            Code::FailedPrecondition | Code::AlreadyExists => (ErrorKind::Invalid, false),
            Code::DeadlineExceeded => (ErrorKind::TimedOut, true),
            _ => (ErrorKind::Lost, true),
        };
        let error = Error::new(kind, format!("etcd at {}: {}", self.address.url, reason(status)));
        MemberFailure { error, is_passing }
    }

    /// That it did not answer within `limit`.
    pub(crate) fn no_answer(&self, limit: Duration) -> MemberFailure {
        let limit = limit.as_secs_f64();
        let message = format!("etcd at {}: no answer within {limit:.1} s", self.address.url);
        MemberFailure { error: Error::timed_out(message), is_passing: true }
    }
}

fn open_channel(address: &MemberAddress, tls: Option<&EtcdTlsFiles>) -> Channel {
    let Some(files) = tls.cloned() else {
        let endpoint = Endpoint::from(address.uri.clone()).tcp_nodelay(true);
        return endpoint.connect_timeout(CONNECT_TIMEOUT).connect_lazy();
    };
    // The name is not looked up: the connector knows where to, and speaks TLS itself.
    let endpoint = Endpoint::from_static("http://etcd.tessera")
        .origin(address.uri.clone())
        .connect_timeout(CONNECT_TIMEOUT);
    let address = address.clone();
    let connect = service_fn(move |_| connect_with_tls(address.clone(), files.clone()));
    endpoint.connect_with_connector_lazy(connect)
}

async fn connect_with_tls(
    address: MemberAddress,
    files: EtcdTlsFiles,
) -> std::io::Result<TokioIo<tokio_rustls::client::TlsStream<TcpStream>>> {
    let connector = files.make_connector().map_err(std::io::Error::other)?;
    let name = ServerName::try_from(address.host.clone()).map_err(std::io::Error::other)?;
    let socket = TcpStream::connect((address.host, address.port)).await?;
    socket.set_nodelay(true)?;
    connector.connect(name, socket).await.map(TokioIo::new)
}

/// The cause of a failed call, from the bottom.
fn reason(status: &Status) -> String {
    let Some(mut cause) = status.source() else { return status.message().to_owned() };
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}
