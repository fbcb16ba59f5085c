//! How blocks run on a GPU.

use tessera_core::{Error, Result};

/// How blocks run on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct CudaOptions {
    /// Whether products of `f32` may be computed with ten bits of fraction, which is faster.
    pub tf32: bool,
    /// How the algorithm of a convolution is chosen.
    pub convolution: ConvolutionSearch,
    /// Whether runs may be captured as CUDA graphs, see
    /// [`crate::CudaEngineSession::capture_cuda_graphs`].
    pub cuda_graphs: bool,
}

impl Default for CudaOptions {
    fn default() -> Self {
        Self { tf32: false, convolution: ConvolutionSearch::default(), cuda_graphs: true }
    }
}

impl CudaOptions {
    /// What tells these from others, as part of a file's name.
    pub fn cache_name(self) -> &'static str {
        if self.tf32 { "cuda-tf32" } else { "cuda" }
    }
}

/// How the algorithm of a convolution is chosen.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum ConvolutionSearch {
    /// All are tried, when a shape comes first: hundreds of milliseconds for each.
    Exhaustive,
    /// By rules of thumb. On an H200, ResNet-50 is as fast as with a search, at batch 1 and 32.
    #[default]
    Heuristic,
    /// Always the same one.
    Default,
}

impl std::str::FromStr for ConvolutionSearch {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "exhaustive" => Ok(Self::Exhaustive),
            "heuristic" => Ok(Self::Heuristic),
            "default" => Ok(Self::Default),
            _ => Err(Error::usage(format!(
                "convolution search \"{text}\", expected exhaustive, heuristic or default"
            ))),
        }
    }
}

impl std::fmt::Display for ConvolutionSearch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Exhaustive => "exhaustive",
            Self::Heuristic => "heuristic",
            Self::Default => "default",
        })
    }
}
