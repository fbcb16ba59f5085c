//! Which engine to use. To add an engine: its folder with the trait [`Engine`], and a line here.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use tessera_core::{Error, Result};

use crate::onnxruntime::is_library_named;
use crate::{Engine, OnnxRuntime, Rten};

/// An engine by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineName {
    /// ONNX Runtime where its library is found, rten otherwise.
    #[default]
    Auto,
    /// ONNX Runtime.
    OnnxRuntime,
    /// rten.
    Rten,
}

impl FromStr for EngineName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "auto" => Ok(Self::Auto),
            "onnxruntime" | "ort" => Ok(Self::OnnxRuntime),
            "rten" => Ok(Self::Rten),
            _ => Err(Error::usage(format!(
                "unknown engine \"{text}\", expected auto, onnxruntime or rten"
            ))),
        }
    }
}

impl fmt::Display for EngineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::OnnxRuntime => "onnxruntime",
            Self::Rten => "rten",
        })
    }
}

/// The engine of this name; a note comes along where `auto` had to settle for rten.
pub fn choose_engine(name: EngineName) -> Result<(Arc<dyn Engine>, Option<String>)> {
    match name {
        EngineName::Rten => Ok((Arc::new(Rten::new()), None)),
        EngineName::OnnxRuntime => Ok((Arc::new(OnnxRuntime::new()?), None)),
        EngineName::Auto => match OnnxRuntime::new() {
            Ok(engine) => Ok((Arc::new(engine), None)),
            // Where somebody says which library to take, another engine is not what they want.
            Err(error) if is_library_named() => Err(error),
            Err(error) => {
                let note = format!("running on rten, about half as fast: {error}");
                Ok((Arc::new(Rten::new()), Some(note)))
            }
        },
    }
}
