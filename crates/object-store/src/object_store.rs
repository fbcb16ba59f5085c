//! A store as a place for content: what is put where, and fetched from there.

use std::collections::BTreeMap;
use std::ffi::OsString;

use bytes::Bytes;
use tessera_core::{ContentHash, ContentTree, Error, RANGE_BYTES, Result};
use tessera_repository::{
    ContentKind, ContentName, ContentSource, OpenedContent, Repository, SourceSpeed,
};

use crate::blob_store::{BlobStore, NoPieces, read_whole};
use crate::folder_store::FolderStore;
use crate::store_address::{StoreAddress, StorePlace};

/// Largest list of hashes of ranges: that of 512 GiB.
const LARGEST_TREE: u64 = 16 << 20;

/// An object store. Its functions are called by threads that may wait.
pub struct ObjectStore {
    name: String,
    address: StoreAddress,
    pub(crate) blobs: Box<dyn BlobStore>,
}

impl ObjectStore {
    /// The store at this address, with the keys of this process's environment; whether it is there
    /// is found out when it is used.
    pub fn open(address: &StoreAddress) -> Result<Self> {
        let text = |(name, value): (OsString, OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        Self::open_with(address, &std::env::vars_os().filter_map(text).collect())
    }

    /// The same with the keys of this environment.
    pub fn open_with(
        address: &StoreAddress,
        environment: &BTreeMap<String, String>,
    ) -> Result<Self> {
        let blobs: Box<dyn BlobStore> = match &address.place {
            StorePlace::Folder(folder) => Box::new(FolderStore::new(folder.clone())),
            StorePlace::S3 { bucket, prefix } => open_bucket(address, bucket, prefix, environment)?,
        };
        Ok(Self { name: format!("object store {address}"), address: address.clone(), blobs })
    }

    /// Where it is.
    pub fn address(&self) -> &StoreAddress {
        &self.address
    }

    /// Whether some content is there.
    pub fn has_content(&self, name: ContentName) -> Result<bool> {
        let found = self.blobs.length_of(&content_path(name));
        Ok(found.map_err(|error| self.named(error))?.is_some())
    }

    /// Puts content of a repository there; returns how many bytes, none where it was there already.
    pub fn put_content(&self, repository: &Repository, name: ContentName) -> Result<u64> {
        if self.has_content(name)? {
            return Ok(0);
        }
        // What is damaged here does not get there.
        let (bytes, tree) = repository.map_content(name)?;
        let length = bytes.len() as u64;
        let put = || -> Result<bool> {
            if tree.total() > RANGE_BYTES {
                // First, so that whoever finds the content finds it, too.
                self.blobs.put_new(&tree_path(name.hash), write_tree(&tree))?;
            }
            self.blobs.put_new(&content_path(name), bytes)
        };
        let is_new = put().map_err(|error| self.named(error).with_context(name.to_string()))?;
        Ok(if is_new { length } else { 0 })
    }

    /// An error of this store.
    pub(crate) fn named(&self, error: Error) -> Error {
        error.with_context(self.name.clone())
    }
}

#[cfg(feature = "s3")]
fn open_bucket(
    _: &StoreAddress,
    bucket: &str,
    prefix: &str,
    environment: &BTreeMap<String, String>,
) -> Result<Box<dyn BlobStore>> {
    Ok(Box::new(crate::s3_store::S3Store::open(bucket, prefix, environment)?))
}

#[cfg(not(feature = "s3"))]
fn open_bucket(
    address: &StoreAddress,
    _: &str,
    _: &str,
    _: &BTreeMap<String, String>,
) -> Result<Box<dyn BlobStore>> {
    Err(Error::unsupported(format!(
        "{address}: this build of tessera has no S3, expected file:///FOLDER, or one that was made \
         with `cargo build --release --features s3`"
    )))
}

fn content_path(name: ContentName) -> String {
    let folder = match name.kind {
        ContentKind::Block => "blocks",
        ContentKind::Weight => "weights",
        ContentKind::Model => "models",
    };
    hashed_path(folder, name.hash)
}

fn tree_path(hash: ContentHash) -> String {
    hashed_path("trees", hash)
}

fn hashed_path(folder: &str, hash: ContentHash) -> String {
    let hash = hash.to_string();
    format!("{folder}/{}/{hash}", &hash[..2])
}

/// A tree as it is kept: the length of the content, and the hashes of its ranges.
fn write_tree(tree: &ContentTree) -> Bytes {
    [&tree.total().to_le_bytes()[..], &tree.range_hashes()].concat().into()
}

impl ContentSource for ObjectStore {
    fn source_name(&self) -> &str {
        &self.name
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn expected_speed(&self) -> Option<SourceSpeed> {
        None
    }

    fn read_tree(&self, name: ContentName) -> Result<ContentTree> {
        let bytes = read_whole(&*self.blobs, &tree_path(name.hash), LARGEST_TREE)?;
        let bytes = bytes.ok_or_else(|| Error::not_found(format!("{name}: no ranges of it")))?;
        let Some((total, hashes)) = bytes.split_first_chunk() else {
            return Err(Error::corrupt(format!("{name}: its ranges are cut short")));
        };
        ContentTree::from_parts(name.hash, u64::from_le_bytes(*total), hashes)
    }

    fn open_content(&self, name: ContentName, offset: u64) -> Result<OpenedContent> {
        let path = content_path(name);
        if offset == 0 {
            return self.blobs.open(&path, 0);
        }
        // A range that begins at the end, or past it, is none.
        let length = self.blobs.length_of(&path)?;
        let total = length.ok_or_else(|| Error::not_found(format!("{name}: it is not there")))?;
        if offset >= total {
            return Ok(OpenedContent { total, pieces: Box::new(NoPieces) });
        }
        self.blobs.open(&path, offset)
    }
}
