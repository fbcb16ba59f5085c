//! Models that are brought to a server and kept there, whether or not a task serves them.

use std::path::PathBuf;

use serde::Serialize;
use tessera_core::Result;

/// A model that is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ModelStatus {
    /// Its name.
    pub name: String,
    /// The hash of what it is cut into.
    pub hash: String,
    /// Its blocks, in the order in which they run.
    pub blocks: Vec<ModelBlock>,
    /// Bytes of its weights.
    pub weight_bytes: u64,
    /// Its exits.
    pub exits: Vec<String>,
}

/// A block of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ModelBlock {
    /// Its hash.
    pub hash: String,
    /// Bytes of its weights.
    pub weight_bytes: u64,
    /// The other models that have it.
    pub shared_with: Vec<String>,
}

/// What came of a model that was brought, or would come of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StoredModel {
    /// The model as it is kept.
    #[serde(flatten)]
    pub model: ModelStatus,
    /// Bytes of its weights that were not there.
    pub new_weight_bytes: u64,
    /// Bytes of its weights that are in blocks which other models have, too.
    pub shared_weight_bytes: u64,
    /// Models that are cut further, so that what they have in common with it is shared. Their tasks
    /// run so with the next task that is put.
    pub recut: Vec<String>,
    /// Whether it is kept: it is not where only that was asked for what would come of it.
    pub is_kept: bool,
}

/// A model that is brought.
#[derive(Clone, Debug)]
pub struct BroughtModel {
    /// What it is to be called.
    pub name: String,
    /// A folder with its file, and what belongs to it.
    pub folder: PathBuf,
    /// The models that tasks serve: what they have in common with it is shared.
    pub served: Vec<String>,
    /// Whether it is kept, and not only found out what would come of it.
    pub is_kept: bool,
}

/// Keeps models.
pub trait ModelStore: Send + Sync + 'static {
    /// A folder for a model that comes.
    fn make_folder(&self) -> Result<tempfile::TempDir>;

    /// Cuts a model and keeps it.
    fn put_model(&self, model: &BroughtModel) -> Result<StoredModel>;

    /// Every model.
    fn list_models(&self) -> Result<Vec<ModelStatus>>;

    /// One of them; `NotFound` where there is none of this name.
    fn find_model(&self, name: &str) -> Result<ModelStatus>;

    /// Forgets a model that nobody serves.
    fn remove_model(&self, name: &str) -> Result<()>;
}
