//! Flags that say which model, where it is cut, and where its blocks are kept.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use tessera_core::{Error, Result};
use tessera_graph::{ExitSpec, Split};

/// What a model file leaves open: shapes and exits.
#[derive(Args)]
pub struct ModelArguments {
    /// Fix the shape of an input, for models with symbolic dimensions; repeat for more
    #[arg(long = "shape", value_name = "NAME=d,d,…")]
    pub shapes: Vec<String>,
    /// An output that is a side exit, taken where the normalised entropy is at most THRESHOLD
    /// [default: what MODEL.exits.json beside the model says]; repeat for more
    #[arg(long = "exit", value_name = "OUTPUT=THRESHOLD")]
    pub exits: Vec<String>,
}

impl ModelArguments {
    /// The shapes of inputs, by name.
    pub fn parse_shapes(&self) -> Result<BTreeMap<String, Vec<usize>>> {
        parse_shapes(&self.shapes)
    }

    /// The exits.
    pub fn parse_exits(&self) -> Result<Vec<ExitSpec>> {
        self.exits
            .iter()
            .map(|text| {
                let wrong = || {
                    Error::usage(format!(
                        "--exit \"{text}\", expected OUTPUT=THRESHOLD such as exit_15=0.5"
                    ))
                };
                let (output, threshold) = text.rsplit_once('=').ok_or_else(wrong)?;
                let threshold = threshold.parse().map_err(|_| wrong())?;
                Ok(ExitSpec { output: output.to_owned(), threshold })
            })
            .collect()
    }
}

/// The shapes that are written `NAME=d,d,…`, by name.
pub fn parse_shapes(shapes: &[String]) -> Result<BTreeMap<String, Vec<usize>>> {
    let parse = |text: &String| {
        let wrong = || {
            Error::usage(format!("--shape \"{text}\", expected NAME=d,d,… such as x=1,3,224,224"))
        };
        let (name, dims) = text.rsplit_once('=').ok_or_else(wrong)?;
        let dims = dims.split(',').map(str::trim).filter(|dim| !dim.is_empty());
        let dims = dims.map(|dim| dim.parse().map_err(|_| wrong())).collect::<Result<_>>()?;
        Ok((name.to_owned(), dims))
    };
    shapes.iter().map(parse).collect()
}

/// Where a model is cut.
#[derive(Args)]
pub struct SplitArguments {
    /// Cut into N blocks, the most expensive one as cheap as possible
    /// [default: 4, or as many as the model can be cut into]
    #[arg(long, value_name = "N", conflicts_with_all = ["at", "every"])]
    pub blocks: Option<usize>,
    /// Cut at these tensors; see `tessera inspect` for where that is possible
    #[arg(long, value_name = "TENSOR,…", value_delimiter = ',', conflicts_with = "every")]
    pub at: Vec<String>,
    /// Cut at every cut point
    #[arg(long)]
    pub every: bool,
}

impl SplitArguments {
    /// Where to cut, where the user says anything about it.
    pub fn chosen_split(&self) -> Option<Split> {
        if self.every {
            Some(Split::Every)
        } else if !self.at.is_empty() {
            Some(Split::At(self.at.clone()))
        } else {
            self.blocks.map(Split::Blocks)
        }
    }
}

/// Where blocks are kept.
#[derive(Args)]
pub struct RepositoryArgument {
    /// Folder of the repository; made where there is none
    #[arg(long, value_name = "FOLDER", env = "TESSERA_REPO", default_value = "tessera-repo")]
    pub repo: PathBuf,
}
