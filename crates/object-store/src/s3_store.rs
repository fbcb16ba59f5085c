//! A bucket of S3, or of what speaks like it. Keys, endpoint and region are in the environment, as
//! other programs for S3 have them (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT` and others).

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};
use object_store::path::Path;
use object_store::{
    ClientOptions, GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutMode, PutOptions,
    PutPayload, RetryConfig,
};
use tessera_core::{Error, ErrorKind, Result};
use tessera_repository::{ContentPieces, OpenedContent};
use tokio::runtime::Runtime;
use tokio::time::timeout;

use crate::blob_store::BlobStore;
use crate::s3_http::S3Connector;

/// What says who asks: keys, or where to get some.
const KEY_VARIABLES: [&str; 4] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
];
/// What says where it is, where that is not Amazon.
const ENDPOINT_VARIABLES: [&str; 3] = ["AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"];
/// How often something is tried, and for how long: others may have what is asked for.
const MOST_RETRIES: usize = 3;
const RETRY_TIME: Duration = Duration::from_secs(10);
/// How long nothing may come of what is sent.
const PIECE_PATIENCE: Duration = Duration::from_secs(15);

/// A bucket, or the part of it under a prefix.
pub(crate) struct S3Store {
    bucket: AmazonS3,
    prefix: String,
}

struct S3Pieces {
    stream: BoxStream<'static, object_store::Result<Bytes>>,
}

/// What requests run on; whoever asks waits.
fn runtime() -> Result<&'static Runtime> {
    static RUNTIME: OnceLock<std::io::Result<Runtime>> = OnceLock::new();
    let made = RUNTIME.get_or_init(|| {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(1).thread_name("s3").enable_all().build()
    });
    made.as_ref().map_err(|error| Error::from_io("the runtime of the object store", error))
}

impl S3Store {
    /// A bucket, with what the environment says.
    pub(crate) fn open(
        bucket: &str,
        prefix: &str,
        environment: &BTreeMap<String, String>,
    ) -> Result<Self> {
        if !KEY_VARIABLES.iter().any(|name| environment.contains_key(*name)) {
            return Err(Error::usage(format!(
                "s3://{bucket}: expected AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the \
                 environment, and AWS_ENDPOINT for what is not Amazon's"
            )));
        }
        let endpoint = ENDPOINT_VARIABLES.iter().find_map(|name| environment.get(*name));
        // Whoever names such an endpoint means it.
        let allows_http = endpoint.is_some_and(|endpoint| endpoint.starts_with("http://"));
        let mut builder = AmazonS3Builder::new();
        for (name, value) in environment.iter().filter(|(name, _)| name.starts_with("AWS_")) {
            if let Ok(key) = name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>() {
                builder = builder.with_config(key, value);
            }
        }
        let retry = RetryConfig {
            max_retries: MOST_RETRIES,
            retry_timeout: RETRY_TIME,
            ..RetryConfig::default()
        };
        let built = builder
            .with_bucket_name(bucket)
            .with_client_options(ClientOptions::new().with_allow_http(allows_http))
            .with_retry(retry)
            .with_http_connector(S3Connector::new(environment)?)
            .build();
        let bucket = built.map_err(|error| store_error(&error))?;
        Ok(Self { bucket, prefix: prefix.to_owned() })
    }

    /// Names of models may be any that a file may have: what a path can't have in it is written as
    /// `%20` and the like.
    fn path(&self, path: &str) -> Path {
        self.prefix.split_terminator('/').chain(path.split('/')).collect()
    }

    fn put(&self, path: &str, bytes: Bytes, mode: PutMode) -> Result<bool> {
        let (path, payload) = (self.path(path), PutPayload::from_bytes(bytes));
        let options = PutOptions { mode, ..PutOptions::default() };
        match runtime()?.block_on(self.bucket.put_opts(&path, payload, options)) {
            Ok(_) => Ok(true),
            Err(object_store::Error::AlreadyExists { .. }) => Ok(false),
            Err(error) => Err(store_error(&error)),
        }
    }
}

impl BlobStore for S3Store {
    fn put_new(&self, path: &str, bytes: Bytes) -> Result<bool> {
        self.put(path, bytes, PutMode::Create)
    }

    fn replace(&self, path: &str, bytes: Bytes) -> Result<()> {
        self.put(path, bytes, PutMode::Overwrite).map(drop)
    }

    fn length_of(&self, path: &str) -> Result<Option<u64>> {
        let path = self.path(path);
        match runtime()?.block_on(self.bucket.head(&path)) {
            Ok(found) => Ok(Some(found.size)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(store_error(&error)),
        }
    }

    fn open(&self, path: &str, offset: u64) -> Result<OpenedContent> {
        let path = self.path(path);
        let range = (offset > 0).then_some(GetRange::Offset(offset));
        let options = GetOptions { range, ..GetOptions::default() };
        let opened = runtime()?.block_on(self.bucket.get_opts(&path, options));
        let opened = opened.map_err(|error| store_error(&error))?;
        let total = opened.meta.size;
        Ok(OpenedContent { total, pieces: Box::new(S3Pieces { stream: opened.into_stream() }) })
    }

    fn list_names(&self, folder: &str) -> Result<Vec<String>> {
        let folder = self.path(folder);
        let listed = runtime()?.block_on(self.bucket.list_with_delimiter(Some(&folder)));
        let listed = listed.map_err(|error| store_error(&error))?;
        let name =
            |object: &object_store::ObjectMeta| object.location.filename().and_then(decode_name);
        let mut names: Vec<String> = listed.objects.iter().filter_map(name).collect();
        names.sort_unstable();
        Ok(names)
    }
}

/// A name as it was before it became a part of a path, in which some letters are written as `%20`.
fn decode_name(part: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.map(|digits| u8::from_str_radix(digits, 16)) {
            Some(Ok(byte)) if *first == b'%' => {
                bytes.push(byte);
                rest = &after[2..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).ok()
}

impl ContentPieces for S3Pieces {
    fn next_piece(&mut self) -> Result<Option<Bytes>> {
        // A timer needs a runtime when it is made.
        let waiting = async { timeout(PIECE_PATIENCE, self.stream.next()).await };
        let next = runtime()?.block_on(waiting);
        let next = next
            .map_err(|_| Error::lost(format!("nothing came for {} s", PIECE_PATIENCE.as_secs())))?;
        next.transpose().map_err(|error| store_error(&error))
    }
}

fn store_error(error: &object_store::Error) -> Error {
    let kind = match error {
        object_store::Error::NotFound { .. } => ErrorKind::NotFound,
        object_store::Error::PermissionDenied { .. }
        | object_store::Error::Unauthenticated { .. } => ErrorKind::Usage,
        _ => ErrorKind::Lost,
    };
    Error::new(kind, error.to_string())
}
