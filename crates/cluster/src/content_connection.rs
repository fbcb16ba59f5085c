//! Asking a controller or a node for content.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use rustls::ClientConfig;
use tessera_core::{ContentHash, ContentTree, Error, Result};
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Response, Status, Streaming};

use crate::controller_channel::{SocketHook, connect_to_node};
use crate::join::status_kind;
use crate::wire::content_client::ContentClient;
use crate::wire::{ContentChunk, ContentRequest, LocateRequest, TreeRequest};

/// How long nothing may come before whoever was asked is taken for gone.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long it may take to find out the hashes of ranges: all of the content is read for that.
const TREE_PATIENCE: Duration = Duration::from_secs(60);
/// Largest list of hashes: that of 512 GiB.
const LARGEST_TREE: usize = 16 << 20;

/// A connection to somebody who may have content.
#[derive(Clone)]
pub struct ContentConnection {
    channel: Channel,
}

/// A node that has content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContentHolder {
    /// What it is called.
    pub node: String,
    /// Where it is asked for content: host and port.
    pub address: String,
    /// What it has of what was asked for.
    pub has: Vec<ContentHash>,
}

/// Who has content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocatedContent {
    /// Nodes that have some of it.
    pub holders: Vec<ContentHolder>,
    /// Where the cluster's object store is.
    pub object_store: Option<String>,
}

/// Content that is being sent.
pub struct FetchedContent {
    /// The length of all of it.
    pub total: u64,
    first: Option<Bytes>,
    chunks: Streaming<ContentChunk>,
}

impl ContentConnection {
    pub(crate) fn new(channel: Channel) -> Self {
        Self { channel }
    }

    /// Connects to a node of the cluster, which has this name in its certificate.
    pub async fn to_node(
        who: &str,
        address: &str,
        certificate_name: &str,
        config: ClientConfig,
        on_socket: SocketHook,
    ) -> Result<Self> {
        connect_to_node(who, address, certificate_name, config, on_socket).await.map(Self::new)
    }

    fn client(&self) -> ContentClient<Channel> {
        ContentClient::new(self.channel.clone()).max_decoding_message_size(LARGEST_TREE)
    }

    /// Fetches content from an offset on.
    pub async fn fetch_content(
        &self,
        kind: &str,
        hash: ContentHash,
        offset: u64,
    ) -> Result<FetchedContent> {
        let request = ContentRequest { kind: kind.to_owned(), hash: hash.to_string(), offset };
        let mut client = self.client();
        let mut chunks = answer_of(PATIENCE, client.fetch(request)).await?;
        let first = next_chunk(&mut chunks).await?;
        let first = first.ok_or_else(|| Error::lost("it was cut off"))?;
        Ok(FetchedContent { total: first.total, first: Some(first.bytes), chunks })
    }

    /// What the ranges of some content are checked with.
    pub async fn content_tree(&self, kind: &str, hash: ContentHash) -> Result<ContentTree> {
        let request = TreeRequest { kind: kind.to_owned(), hash: hash.to_string() };
        let mut client = self.client();
        let reply = answer_of(TREE_PATIENCE, client.tree(request)).await?;
        ContentTree::from_parts(hash, reply.total, &reply.ranges)
    }

    /// Who has content; a controller alone knows.
    pub async fn locate_content(&self, hashes: &[ContentHash]) -> Result<LocatedContent> {
        let asked = hashes.iter().map(|hash| Bytes::copy_from_slice(hash.as_bytes()));
        let request = LocateRequest { hashes: asked.collect() };
        let mut client = self.client();
        let reply = answer_of(PATIENCE, client.locate(request)).await?;
        let place = |place: &u32| hashes.get(*place as usize).copied();
        let holders = reply.holders.into_iter().map(|holder| ContentHolder {
            has: holder.has.iter().filter_map(place).collect(),
            node: holder.node,
            address: holder.address,
        });
        let object_store = Some(reply.object_store).filter(|url| !url.is_empty());
        Ok(LocatedContent { holders: holders.collect(), object_store })
    }
}

impl FetchedContent {
    /// What comes next; `None` at the end.
    pub async fn next_piece(&mut self) -> Result<Option<Bytes>> {
        if let Some(first) = self.first.take() {
            return Ok(Some(first));
        }
        Ok(next_chunk(&mut self.chunks).await?.map(|chunk| chunk.bytes))
    }
}

impl fmt::Debug for FetchedContent {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("FetchedContent").field("total", &self.total).finish_non_exhaustive()
    }
}

/// What somebody answers; an error where nothing comes in time.
async fn answer_of<T>(
    patience: Duration,
    asking: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T> {
    let answered = timeout(patience, asking).await.map_err(|_| silence(patience))?;
    answered.map(Response::into_inner).map_err(|status| refusal_error(&status))
}

async fn next_chunk(chunks: &mut Streaming<ContentChunk>) -> Result<Option<ContentChunk>> {
    let next = timeout(PATIENCE, chunks.message()).await.map_err(|_| silence(PATIENCE))?;
    next.map_err(|status| refusal_error(&status))
}

fn refusal_error(status: &Status) -> Error {
    Error::new(status_kind(status), status.message())
}

fn silence(patience: Duration) -> Error {
    Error::lost(format!("nothing came for {} s", patience.as_secs()))
}
