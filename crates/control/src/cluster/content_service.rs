//! Content answered over gRPC: by a controller, and by nodes to each other.

use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use bytes::Bytes;
use futures_util::{Stream, stream};
use tessera_cluster::wire::content_server::{Content, ContentServer};
use tessera_cluster::wire::{
    ContentChunk, ContentRequest, LocateReply, LocateRequest, TreeReply, TreeRequest,
};
use tessera_core::{ContentHash, ContentTree, Error, ErrorKind, Result};
use tonic::service::Routes;
use tonic::{Request, Response, Status};

use crate::run_apart::run_blocking;

/// Bytes that are read at once.
const READ_BYTES: usize = 256 << 10;
/// Bytes of a chunk of content: what has come of one is lost when a node dies meanwhile.
const CHUNK_BYTES: usize = 64 << 10;

/// A part of some content.
#[derive(Clone, Debug)]
pub struct ContentSlice {
    /// The length of all of it.
    pub total: u64,
    /// What is there from the offset on, as much as was asked for or less.
    pub bytes: Bytes,
}

/// Content that others may have; called where waiting for a disk does no harm.
pub trait ServedContent: Send + Sync + 'static {
    /// At most so many bytes of some content, from an offset on.
    fn read_content(
        &self,
        kind: &str,
        hash: ContentHash,
        offset: u64,
        most: usize,
    ) -> Result<ContentSlice>;

    /// What the ranges of some content are checked with.
    fn content_tree(&self, kind: &str, hash: ContentHash) -> Result<Arc<ContentTree>>;
}

/// Answers nodes that ask a node for content, to be asked through connections of nodes alone.
pub fn content_router(content: Arc<dyn ServedContent>) -> Router {
    Routes::new(ContentServer::new(NodeContent { content })).into_axum_router()
}

/// What a node has for others.
struct NodeContent {
    content: Arc<dyn ServedContent>,
}

/// Content as it is sent.
pub(super) type FetchStream = Pin<Box<dyn Stream<Item = Result<ContentChunk, Status>> + Send>>;

/// Sends some content.
pub(super) fn send_content(
    content: Arc<dyn ServedContent>,
    request: ContentRequest,
) -> Result<Response<FetchStream>, Status> {
    let ContentRequest { kind, hash, offset } = request;
    let hash = read_hash(&hash)?;
    // What was read and is not sent yet, and where the rest begins.
    let nothing = ContentSlice { total: 0, bytes: Bytes::new() };
    let chunks = stream::try_unfold((nothing, Some(offset)), move |(mut unsent, mut next)| {
        let (content, kind) = (Arc::clone(&content), kind.clone());
        async move {
            if unsent.bytes.is_empty() {
                let Some(offset) = next else { return Ok(None) };
                let read = move || content.read_content(&kind, hash, offset, READ_BYTES);
                unsent = run_for_node(read).await?;
                let end = offset + unsent.bytes.len() as u64;
                next = (end < unsent.total && !unsent.bytes.is_empty()).then_some(end);
            }
            let bytes = unsent.bytes.split_to(unsent.bytes.len().min(CHUNK_BYTES));
            Ok(Some((ContentChunk { total: unsent.total, bytes }, (unsent, next))))
        }
    });
    Ok(Response::new(Box::pin(chunks)))
}

/// Sends what the ranges of some content are checked with.
pub(super) async fn send_tree(
    content: Arc<dyn ServedContent>,
    request: TreeRequest,
) -> Result<Response<TreeReply>, Status> {
    let TreeRequest { kind, hash } = request;
    let hash = read_hash(&hash)?;
    let tree = run_for_node(move || content.content_tree(&kind, hash)).await?;
    Ok(Response::new(TreeReply { total: tree.total(), ranges: tree.range_hashes().into() }))
}

fn read_hash(text: &str) -> Result<ContentHash, Status> {
    text.parse().map_err(|_| Status::invalid_argument(format!("\"{text}\" is no hash of content")))
}

/// Does what may wait for a disk, for a node.
pub(super) async fn run_for_node<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T, Status> {
    run_blocking(work).await.map_err(|error| refusal(&error))
}

/// How an error is said over gRPC.
pub(super) fn refusal(error: &Error) -> Status {
    let message = error.to_string();
    match error.kind() {
        ErrorKind::Usage => Status::permission_denied(message),
        ErrorKind::Invalid => Status::invalid_argument(message),
        ErrorKind::NotFound => Status::not_found(message),
        ErrorKind::Full => Status::resource_exhausted(message),
        ErrorKind::Corrupt => {
            tracing::error!(%error, "content is damaged");
            Status::data_loss(message)
        }
        _ => {
            tracing::error!(%error, "a node's request failed");
            Status::internal(message)
        }
    }
}

#[tonic::async_trait]
impl Content for NodeContent {
    type FetchStream = FetchStream;

    async fn fetch(
        &self,
        request: Request<ContentRequest>,
    ) -> Result<Response<Self::FetchStream>, Status> {
        send_content(Arc::clone(&self.content), request.into_inner())
    }

    async fn tree(&self, request: Request<TreeRequest>) -> Result<Response<TreeReply>, Status> {
        send_tree(Arc::clone(&self.content), request.into_inner()).await
    }

    async fn locate(&self, _: Request<LocateRequest>) -> Result<Response<LocateReply>, Status> {
        Err(Status::unimplemented("who has content is asked of a controller"))
    }
}
