//! A program that prints a line of JSON when it is ready, in a process of its own.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use serde::de::DeserializeOwned;
use tessera_command::interrupt;
use tessera_core::{Error, Result};

/// A program that runs; killed when this is dropped, or by an interrupt.
pub(crate) struct AnnouncedProcess {
    pub(crate) child: Child,
}

impl AnnouncedProcess {
    /// Starts a program, and waits for what it says when it is ready; `what` it is, for messages.
    pub(crate) fn start<T: DeserializeOwned>(
        what: &str,
        command: &mut Command,
    ) -> Result<(Self, T)> {
        let fail = |error: std::io::Error| Error::from_io(what, &error);
        let child = command.stdout(Stdio::piped()).spawn().map_err(fail)?;
        let mut started = Self { child };
        if let Some(process) = started.process_id() {
            interrupt::end_process_too(process);
        }
        let mut line = String::new();
        if let Some(output) = started.child.stdout.take() {
            BufReader::new(output).read_line(&mut line).map_err(fail)?;
        }
        let announced = serde_json::from_str(&line).map_err(|_| {
            Error::engine(format!("{what} did not get ready; see what it wrote above"))
        })?;
        Ok((started, announced))
    }

    pub(crate) fn process_id(&self) -> Option<rustix::process::Pid> {
        i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw)
    }

    /// Kills it, so that it has no chance to clean up.
    pub(crate) fn kill(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        if let Some(process) = self.process_id() {
            interrupt::forget_process(process);
        }
    }
}

impl Drop for AnnouncedProcess {
    fn drop(&mut self) {
        self.kill();
    }
}
