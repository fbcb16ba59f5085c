//! How every session begins: its threads, and how long they look for work before they sleep.

use ort::environment::Environment;
use ort::logging::LogLevel;
use ort::session::Session as OrtSession;
use ort::session::builder::SessionBuilder;
use tessera_core::{Error, Result};

use crate::LoadOptions;

/// How long a thread of a run looks for more work before it goes to sleep.
const SPIN_MICROSECONDS: &str = "20";

/// The first version that is known to take that; others spin for much longer or not at all.
const SPINS_BRIEFLY: (u32, u32) = (1, 31);

/// Whether a version is this one or a later one.
fn is_at_least(version: &str, least: (u32, u32)) -> bool {
    let mut numbers = version.split('.').map_while(|number| number.parse().ok());
    numbers.next().zip(numbers.next()).is_some_and(|version| version >= least)
}

/// Begins sessions.
#[derive(Clone)]
pub(super) struct SessionBuilders {
    pub(super) environment: Environment,
    /// Whether the library can be told for how long threads spin.
    spins_briefly: bool,
}

impl SessionBuilders {
    /// For sessions of this version of the library.
    pub(super) fn new(environment: Environment, version: &str) -> Self {
        Self { environment, spins_briefly: is_at_least(version, SPINS_BRIEFLY) }
    }

    /// Starts a session. What is loaded to stay uses the shared arena; what is loaded to be
    /// optimised must not, as an arena never shrinks.
    pub(super) fn session_builder(&self, options: &LoadOptions) -> Result<SessionBuilder> {
        let build = || -> ort::Result<SessionBuilder> {
            // A thread that sleeps between two operators has to be woken for each: ResNet-50 on two
            // threads takes 1.3 times as long. One that spins for as long as the library would
            // starves the next block of the chain: 1.35 times the whole model. After 20 µs it is
            // neither.
            Ok(OrtSession::builder(&self.environment)?
                .with_intra_threads(options.threads.get())?
                .with_inter_threads(1)?
                .with_intra_op_spinning(self.spins_briefly)?
                .with_config_entry("session.intra_op.spin_duration_us", SPIN_MICROSECONDS)?
                .with_inter_op_spinning(false)?
                .with_log_level(LogLevel::Fatal)?)
        };
        build().map_err(|error| Error::engine(format!("ONNX Runtime: {error}")))
    }
}

/// An error of ONNX Runtime, about the block or file that `label` names.
pub(super) fn engine_error<R>(label: &str, error: &ort::Error<R>) -> Error {
    Error::engine(format!("{label}: ONNX Runtime: {error}"))
}
