//! The port that other nodes fetch content from: TLS with certificates of the cluster at both ends.
//! Connections of a node that is removed end at once.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tessera_core::{Error, Result};
use tessera_tensormq::{TlsIdentity, certificate_names};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tower_service::Service;

use crate::listeners::RunningListener;
use crate::shutdown::ShutdownSignal;

/// How long TLS may take to agree.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);
/// How long to wait where no connection can be accepted: there may be too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// When others are asked whether they are there still, and how long they may take to say so.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIME: Duration = Duration::from_secs(10);
/// Nodes that may be connected at the same time: others fetch from somebody else.
const MOST_CONNECTIONS: usize = 128;

/// A port that is bound.
pub(super) struct ContentPort {
    socket: TcpListener,
    port: u16,
}

impl ContentPort {
    /// Any port of this address.
    pub(super) async fn bind(address: IpAddr) -> Result<Self> {
        let fail = |error: io::Error| Error::from_io("--listen: the port for content", &error);
        let socket = TcpListener::bind((address, 0)).await.map_err(fail)?;
        let port = socket.local_addr().map_err(fail)?.port();
        Ok(Self { socket, port })
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Answers nodes of the cluster until it is closed; they go on with what comes from others.
    pub(super) fn serve_router(
        self,
        router: Router,
        tls: TlsIdentity,
        closed: ShutdownSignal,
    ) -> RunningListener {
        tokio::spawn(accept_connections(self.socket, router, tls, closed))
    }
}

async fn accept_connections(
    socket: TcpListener,
    router: Router,
    tls: TlsIdentity,
    mut closed: ShutdownSignal,
) {
    let mut open = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = socket.accept() => accepted,
            Some(_) = open.join_next() => continue,
            () = closed.shutdown_requested() => return,
        };
        match accepted {
            Ok((stream, _)) if open.len() < MOST_CONNECTIONS => {
                let (router, tls) = (router.clone(), tls.clone());
                open.spawn(async move {
                    if let Err(error) = serve_connection(stream, router, &tls).await {
                        tracing::debug!(%error, "a connection for content ended");
                    }
                });
            }
            Ok(_) => tracing::debug!("a connection for content too many"),
            Err(error) => {
                tracing::debug!(%error, "a connection for content was not accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve_connection(
    stream: TcpStream,
    router: Router,
    tls: &TlsIdentity,
) -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>> {
    stream.set_nodelay(true)?;
    let socket = stream.as_fd().try_clone_to_owned()?;
    let mut config = tls.server_config();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let accepting = TlsAcceptor::from(Arc::new(config)).accept(stream);
    let stream = tokio::time::timeout(HANDSHAKE_TIME, accepting).await??;
    let certificates = stream.get_ref().1.peer_certificates();
    let own = certificates.and_then(|certificates| certificates.first());
    let names = own.map(certificate_names).unwrap_or_default();
    let _watched = tls.watch_socket(names, socket);
    let service = service_fn(move |request: Request<Incoming>| {
        let mut router = router.clone();
        async move { router.call(request).await }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new()).http2_only();
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIME);
    builder.serve_connection(TokioIo::new(stream), service).await
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Instant;

    use tessera_control::content_router;
    use tessera_core::{ContentHash, ContentTree, RANGE_BYTES};
    use tessera_identity::{Authority, CertificateRequest, NodeName};
    use tessera_probe::LinkProber;
    use tessera_repository::{ContentFetcher, ContentKind, ContentName, ContentSource, Repository};
    use tokio::runtime::Handle;

    use super::*;
    use crate::cluster_node::grpc_source::PeerSource;
    use crate::repository_content::RepositoryContent;
    use crate::shutdown::{ShutdownTrigger, shutdown_channel};

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn identity(authority: &Authority, name: &str) -> TlsIdentity {
        let name: NodeName = name.parse().unwrap();
        let (request, names) =
            (CertificateRequest::generate(&name).unwrap(), [name.certificate_name()]);
        let life = Duration::from_secs(60);
        let signed = authority.sign_request(request.request_pem(), &names, life).unwrap();
        let (certificate, key) = (signed.certificate_pem, request.key_pem());
        TlsIdentity::from_pem(&names[0], &certificate, &key, authority.certificate_pem()).unwrap()
    }

    /// Puts a weight into a repository.
    fn put(folder: &Path, bytes: &[u8]) -> (Repository, ContentName) {
        let repository = Repository::open_or_create(folder).unwrap();
        let tree = ContentTree::of_content(bytes);
        let name = ContentName { kind: ContentKind::Weight, hash: tree.content_hash() };
        let mut import = repository.begin_import(name).unwrap();
        import.check_with(tree).unwrap();
        import.append(bytes).unwrap();
        import.finish(&repository).unwrap();
        (repository, name)
    }

    async fn serve(folder: &Path, tls: &TlsIdentity) -> (String, ShutdownTrigger) {
        let port = ContentPort::bind(HERE).await.unwrap();
        let address = format!("{HERE}:{}", port.port());
        let (closing, closed) = shutdown_channel();
        let content = Arc::new(RepositoryContent::new(folder.to_path_buf()));
        port.serve_router(content_router(content), tls.clone(), closed);
        (address, closing)
    }

    fn peer(name: &str, address: &str, tls: &TlsIdentity) -> Arc<PeerSource> {
        let prober = Arc::new(LinkProber::start(HERE).unwrap());
        let (name, address) = (name.parse().unwrap(), address.to_owned());
        Arc::new(PeerSource::new(name, address, tls.clone(), prober, Handle::current()))
    }

    async fn apart<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
        tokio::task::spawn_blocking(work).await.unwrap()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn nodes_fetch_from_each_other_until_one_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = (0..3 * RANGE_BYTES + 7).map(|place| (place % 253) as u8).collect();
        let (_, name) = put(&folder.path().join("a"), &bytes);
        let authority = Authority::generate("test").unwrap();
        let (a, b) = (identity(&authority, "a"), identity(&authority, "b"));
        let (address, closing) = serve(&folder.path().join("a"), &a).await;
        let source = peer("a", &address, &b);
        let repository = Repository::open_or_create(&folder.path().join("b")).unwrap();
        let asked = Arc::clone(&source);
        apart(move || {
            let list = |_| vec![Arc::clone(&asked) as Arc<dyn ContentSource>];
            ContentFetcher::default().fetch(&repository, name, &list).unwrap();
            let read = repository.read_content_range(name, 0, usize::MAX >> 1).unwrap();
            assert!(read.bytes == bytes);
            let other = ContentName { hash: ContentHash::of_content(b"other"), ..name };
            let error = asked.open_content(other, 0).err().unwrap();
            assert_eq!(error.kind(), tessera_core::ErrorKind::NotFound, "{error}");
        })
        .await;
        // One that is being sent breaks off, and nothing more is sent.
        let asked = Arc::clone(&source);
        let opened = apart(move || asked.open_content(name, 0).unwrap()).await;
        a.set_removed_peers(["b.node.tessera".to_owned()]);
        let start = Instant::now();
        let mut pieces = opened.pieces;
        let error = apart(move || {
            loop {
                match pieces.next_piece() {
                    Ok(Some(_)) => {}
                    Ok(None) => return None,
                    Err(error) => return Some(error),
                }
            }
        });
        // What had come already is there, and is not all of it but for luck.
        drop(error.await);
        assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
        let asked = Arc::clone(&source);
        assert!(apart(move || asked.open_content(name, 0).is_err()).await);
        // Nor does a node that is not removed ask one that is.
        let (c, fresh) = (identity(&authority, "c"), Duration::from_secs(2));
        c.set_removed_peers(["a.node.tessera".to_owned()]);
        let start = Instant::now();
        let removed = peer("a", &address, &c);
        assert!(apart(move || removed.open_content(name, 0).is_err()).await);
        assert!(start.elapsed() < fresh);
        closing.request_shutdown();
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn much_that_is_fetched_at_the_same_time_keeps_nothing_back() {
        let folder = tempfile::tempdir().unwrap();
        let all = (0..8u8).map(|seed| {
            let bytes: Vec<u8> = (0..6 * RANGE_BYTES).map(|place| place as u8 ^ seed).collect();
            put(&folder.path().join("a"), &bytes).1
        });
        let all: Vec<ContentName> = all.collect();
        let authority = Authority::generate("test").unwrap();
        let (a, b) = (identity(&authority, "a"), identity(&authority, "b"));
        let (address, _closing) = serve(&folder.path().join("a"), &a).await;
        let source = peer("a", &address, &b);
        let repository = Repository::open_or_create(&folder.path().join("b")).unwrap();
        let start = Instant::now();
        apart(move || {
            let list = |_| vec![Arc::clone(&source) as Arc<dyn ContentSource>];
            ContentFetcher::default().fetch_all(&repository, &all, &list, &|_| ()).unwrap();
        })
        .await;
        assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn those_of_another_cluster_and_those_of_another_name_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (_, name) = put(&folder.path().join("a"), b"weights");
        let authority = Authority::generate("test").unwrap();
        let (a, b) = (identity(&authority, "a"), identity(&authority, "b"));
        let (address, _closing) = serve(&folder.path().join("a"), &a).await;
        let foreign = identity(&Authority::generate("test").unwrap(), "b");
        for source in [peer("a", &address, &foreign), peer("c", &address, &b)] {
            assert!(apart(move || source.open_content(name, 0).is_err()).await);
        }
        let right = peer("a", &address, &b);
        assert_eq!(apart(move || right.open_content(name, 0).unwrap().total).await, 7);
    }
}
