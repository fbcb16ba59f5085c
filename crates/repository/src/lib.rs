//! A folder of blocks, weights and models, addressed by content.
//!
//! ```text
//! format              what this folder is, and its version
//! blocks/ab/abcd…     a block, under the hash of its file
//! weights/12/1234…    the elements of a weight, under their hash
//! models/9f/9f00…     how blocks hang together in a model, under the hash of that
//! names/resnet50      the hash of the model of this name
//! descriptions/…      labels of classes and formats of images, by the model's name
//! tmp/                files that are being written
//! lock                writers hold it together, gc alone
//! ```
//!
//! A file appears under its name at once and whole, by a rename. Content never changes, so several
//! writers can't get into each other's way; whatever is read is checked against its hash first.
//!
//! Content that a repository lacks is fetched from whoever has it ([`ContentFetcher`]).
//!
//! A model comes from an ONNX file ([`ModelFile`]), which is cut and put here.

#![forbid(unsafe_code)]

mod content_fetch;
mod content_fetcher;
mod content_import;
mod content_source;
mod content_transfer;
mod eviction;
mod files;
mod holds;
mod load;
mod maintenance;
mod model_config;
mod model_description;
mod model_file;
mod model_name;
mod model_segments;
mod model_set;
mod source_meter;
mod source_standings;
mod store;
mod tree_cache;
pub mod unfinished_files;

pub use content_fetcher::ContentFetcher;
pub use content_import::ContentImport;
pub use content_source::{
    ContentPieces, ContentSource, ContentSources, OpenedContent, SourceSpeed,
};
pub use content_transfer::{ContentName, ContentRange};
pub use eviction::EvictedContent;
pub use files::ContentKind;
pub use holds::{ContentHolder, ContentUse, HeldContent};
pub use maintenance::{GcReport, RepositoryProblem, RepositoryUsage};
pub use model_config::{
    ConfiguredBatching, ConfiguredInstances, ConfiguredTensor, ModelConfigFile,
};
pub use model_description::{ClassLabels, ModelDescription};
pub use model_file::{ModelFile, manifest_path, write_manifest};
pub use model_name::model_name_of;
pub use model_set::{ModelShapes, NamedFile, name_files};
pub use store::{ModelEntry, Repository, check_model_name, model_record};
pub use tree_cache::TreeCache;
