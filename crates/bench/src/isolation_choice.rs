//! How units are kept apart in a benchmark that can try both ways.

use clap::ValueEnum;
use tessera_deploy::Isolation;

/// Units on threads, in processes, or the one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum IsolationChoice {
    /// Units run on threads of the server
    Thread,
    /// Each unit runs in a process of its own
    Process,
    /// The one, then the other
    Both,
}

impl IsolationChoice {
    /// What is to be tried, in order.
    pub(crate) fn isolations(self) -> &'static [Isolation] {
        match self {
            Self::Thread => &[Isolation::Thread],
            Self::Process => &[Isolation::Process],
            Self::Both => &[Isolation::Thread, Isolation::Process],
        }
    }
}
