//! The models that a role serves from the start on.

use std::path::PathBuf;

use clap::Args;
use tessera_command::{ModelArguments, SplitArguments};
use tessera_core::{Error, Result};
use tessera_repository::{ModelShapes, name_files};
use tessera_server::ModelFilesConfig;

use super::wrong_flags::note_wrong;

#[derive(Args)]
#[command(mut_arg("blocks", |arg| {
    arg.help(
        "Cut each model into N blocks, the most expensive one as cheap as possible \
         [default: so that what models have in common is shared, and run as one what is not]",
    )
}))]
#[command(mut_arg("shapes", |arg| {
    arg.value_name("[NAME:]INPUT=d,d,…").help(
        "Fix the shape of an input, of all models that have it or of the one called NAME; repeat \
         for more",
    )
}))]
pub(crate) struct ServedModelArguments {
    /// ONNX files; NAME=FILE where the file's name, or its folder's for several that are called
    /// alike, is not what a task should be called
    #[arg(value_name = "[NAME=]FILE")]
    pub(crate) models: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) model: ModelArguments,
    #[command(flatten)]
    pub(crate) split: SplitArguments,
    /// Keep neighbouring blocks apart that no other task shares, instead of running them as one
    #[arg(long)]
    pub(crate) no_fusion: bool,
    /// Never put requests together, and do not calibrate whether it pays: models start sooner
    #[arg(long)]
    pub(crate) no_batching: bool,
}

impl ServedModelArguments {
    /// The models that the user names; tells of every flag that is wrong.
    pub(crate) fn models_config(&self) -> Result<ModelFilesConfig> {
        let mut wrong = Vec::new();
        let shapes = note_wrong(self.model.parse_shapes(), &mut wrong);
        let exits = note_wrong(self.model.parse_exits(), &mut wrong);
        let files = note_wrong(name_files(&self.models), &mut wrong);
        let (Some(shapes), Some(exits), Some(files)) = (shapes, exits, files) else {
            return Err(Error::usage(wrong.join("; ")));
        };
        Ok(ModelFilesConfig {
            files,
            shapes: ModelShapes::new(shapes),
            exits,
            split: self.split.chosen_split(),
            fusion: !self.no_fusion,
            batching: !self.no_batching,
        })
    }
}
