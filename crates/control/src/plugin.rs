//! Placement by a program of the user's.
//!
//! A plugin is an executable. It reads one JSON object from its standard input: the problem, with
//! two more keys, `seed` and, where there is a previous plan, `previous`. It writes the plan to its
//! standard output and ends with exit code 0. The settings of exits are fixed before it is asked:
//! each `exit` has exactly one, and where several are to be tried, it is asked once for each.
//!
//! Nothing that it does is trusted: it has a time limit and a limit on what it writes, whatever it
//! has started is ended with it, and its plan is checked like any other.

use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use serde::Serialize;
use tessera_core::{Error, Result};
use tessera_plan::placement::{
    PlacementCostModel, PlacementLayer, PlacementOptions, PlacementPlan, PlacementPlanFile,
    PlacementProblem, PlacementProposal, PlacementStrategy,
};
use tessera_plan::{SearchLimit, Strategy};

/// Most bytes of a plan.
const MAX_PLAN_BYTES: u64 = 16_000_000;

/// Most bytes that are kept of what it writes to its standard error.
const MAX_ERROR_BYTES: usize = 4096;

/// How long the output of a plugin that has ended may stay open: a pipe holds little.
const OUTPUT_GRACE: Duration = Duration::from_secs(1);

/// How often a plugin is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// A strategy that is an executable of the user's.
#[derive(Clone, Debug)]
pub struct PlacementPlugin {
    path: PathBuf,
    name: String,
    time_limit: Duration,
    /// None: its time never ends.
    deadline: OnceLock<Option<Instant>>,
}

/// What a plugin reads.
#[derive(Serialize)]
struct PluginRequest<'a> {
    #[serde(flatten)]
    problem: &'a PlacementProblem,
    #[serde(skip_serializing_if = "Option::is_none")]
    previous: Option<PlacementPlanFile>,
    seed: u64,
}

/// How a plugin came to its end.
enum PluginEnd {
    /// It ended, and all that it wrote is here.
    Ended(Vec<u8>),
    /// It ended, and something that it started has its output open.
    LeftOpen,
    /// It wrote too much.
    TooMuch,
    /// Its time was up.
    TookTooLong,
    /// The caller had enough.
    Stopped,
}

impl PlacementPlugin {
    /// The executable at this path, which has so long from when it is first asked: for one plan,
    /// with all settings of exits that are tried.
    pub fn new(path: impl Into<PathBuf>, time_limit: Duration) -> Self {
        let path = path.into();
        Self { name: path.display().to_string(), path, time_limit, deadline: OnceLock::new() }
    }

    /// Lets it read `request`, and returns what it wrote.
    fn run_executable(&self, request: Vec<u8>, limit: SearchLimit<'_>) -> Result<Vec<u8>> {
        let deadline = *self.deadline.get_or_init(|| Instant::now().checked_add(self.time_limit));
        if is_over(deadline) {
            return Err(self.time_limit_error());
        }
        let mut child = Command::new(&self.path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // What it starts is in its group, and goes with it.
            .process_group(0)
            .spawn()
            .map_err(|error| Error::from_io(format!("{}: can't be started", self.name), &error))?;
        if let Some(mut stdin) = child.stdin.take() {
            // A plugin may write before it reads, or not read at all: both must go on meanwhile.
            std::thread::spawn(move || drop(stdin.write_all(&request)));
        }
        let written = read_output(&mut child);
        let complaint = read_errors(&mut child);
        let end = wait_for_end(&child, &written, deadline, limit);
        // Before it is waited for: until then its number is nobody else's. A group that is gone is
        // fine.
        kill_process_group(Pid::from_child(&child), Signal::KILL).ok();
        let status = child.wait().map_err(|error| Error::from_io(&self.name, &error))?;
        match end {
            PluginEnd::Ended(bytes) if status.success() => Ok(bytes),
            PluginEnd::Ended(_) => Err(self.exit_error(status, &complaint)),
            PluginEnd::LeftOpen => Err(Error::invalid(format!(
                "{}: it ended, but a process that it started keeps its output open",
                self.name
            ))),
            PluginEnd::TooMuch => Err(Error::invalid(format!(
                "{}: it wrote more than {} MB",
                self.name,
                MAX_PLAN_BYTES / 1_000_000
            ))),
            PluginEnd::TookTooLong => Err(self.time_limit_error()),
            PluginEnd::Stopped => {
                Err(Error::timed_out(format!("{}: ended before it had a plan", self.name)))
            }
        }
    }

    fn time_limit_error(&self) -> Error {
        let seconds = self.time_limit.as_secs_f64();
        Error::timed_out(format!("{}: no plan within {seconds} s; it was ended", self.name))
    }

    /// What to say of a plugin that failed: the last line that it complained.
    fn exit_error(&self, status: ExitStatus, complaint: &Receiver<Vec<u8>>) -> Error {
        let how = match (status.code(), status.signal()) {
            (Some(code), _) => format!("exit code {code}"),
            (None, Some(signal)) => format!("ended by signal {signal}"),
            (None, None) => "failed".to_owned(),
        };
        let text = complaint.recv_timeout(OUTPUT_GRACE).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let last = text.lines().rev().map(str::trim).find(|line| !line.is_empty());
        Error::invalid(match last {
            Some(line) => format!("{}: {how}: {}", self.name, one_line(line)),
            None => format!("{}: {how}", self.name),
        })
    }
}

impl Strategy for PlacementPlugin {
    fn name(&self) -> &str {
        &self.name
    }

    fn one_line_summary(&self) -> &str {
        "an executable that reads the problem as JSON and writes a plan"
    }
}

impl PlacementStrategy for PlacementPlugin {
    fn propose_placement(
        &self,
        cost_model: &PlacementCostModel<'_>,
        options: &PlacementOptions<'_>,
    ) -> Result<PlacementProposal> {
        let problem = with_settings(cost_model);
        let request = PluginRequest {
            problem: &problem,
            previous: options.previous.map(|plan| plan.to_file(cost_model.problem)),
            seed: options.seed,
        };
        let wrong = |error: serde_json::Error| {
            let error = one_line(&error.to_string());
            Error::invalid(format!("{}: what it wrote is no plan: {error}", self.name))
        };
        let request = serde_json::to_vec(&request)
            .map_err(|error| Error::invalid(format!("{}: {error}", self.name)))?;
        let answer = self.run_executable(request, options.limit)?;
        if answer.iter().all(u8::is_ascii_whitespace) {
            return Err(Error::invalid(format!(
                "{}: it wrote nothing, expected a plan",
                self.name
            )));
        }
        let file: PlacementPlanFile = serde_json::from_slice(&answer).map_err(wrong)?;
        let plan = PlacementPlan::from_file(&problem, &file).map_err(|error| {
            Error::invalid(format!("{}: {}", self.name, one_line(&error.to_string())))
        })?;
        let nodes = plan.models.into_iter().map(|model| model.nodes).collect();
        Ok(PlacementProposal { nodes, bound_seconds: None, front: Vec::new() })
    }
}

/// The problem with one setting for each exit: the one that a plan is wanted for.
fn with_settings(cost_model: &PlacementCostModel<'_>) -> PlacementProblem {
    let fix = |layers: &mut [PlacementLayer], settings: &[Option<usize>]| {
        for (layer, setting) in layers.iter_mut().zip(settings) {
            let chosen = setting.and_then(|setting| layer.exit.get(setting).cloned());
            layer.exit = chosen.into_iter().collect();
        }
    };
    let mut problem = cost_model.problem.clone();
    if problem.models.is_empty() {
        for settings in &cost_model.settings {
            fix(&mut problem.layers, settings);
        }
    } else {
        for (model, settings) in problem.models.iter_mut().zip(&cost_model.settings) {
            // It was for choosing the settings.
            model.least_accuracy = None;
            fix(&mut model.layers, settings);
        }
    }
    problem
}

/// What a plugin wrote, as a part of a message: a line, and not a long one.
fn one_line(text: &str) -> String {
    let printable = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    printable.take(300).collect()
}

/// Whether a point in time is over.
fn is_over(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| Instant::now() >= deadline)
}

/// Reads what a plugin writes, on a thread of its own: who has its output open may never close it.
fn read_output(child: &mut Child) -> Receiver<Option<Vec<u8>>> {
    let (sender, receiver) = channel();
    if let Some(stdout) = child.stdout.take() {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let read = stdout.take(MAX_PLAN_BYTES + 1).read_to_end(&mut bytes);
            let fits = read.is_ok() && bytes.len() as u64 <= MAX_PLAN_BYTES;
            // Nobody may be there to listen any more.
            drop(sender.send(fits.then_some(bytes)));
        });
    }
    receiver
}

/// Reads the end of what a plugin complains about.
fn read_errors(child: &mut Child) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    if let Some(mut stderr) = child.stderr.take() {
        std::thread::spawn(move || {
            let (mut kept, mut buffer) = (Vec::new(), [0; MAX_ERROR_BYTES]);
            while let Ok(count @ 1..) = stderr.read(&mut buffer) {
                kept.extend_from_slice(&buffer[..count]);
                kept.drain(..kept.len().saturating_sub(MAX_ERROR_BYTES));
            }
            drop(sender.send(kept));
        });
    }
    receiver
}

/// Waits until a plugin has ended and its output is closed, or until it must be.
fn wait_for_end(
    child: &Child,
    written: &Receiver<Option<Vec<u8>>>,
    deadline: Option<Instant>,
    limit: SearchLimit<'_>,
) -> PluginEnd {
    let mut bytes = None;
    let mut ended_at = None;
    loop {
        if bytes.is_none() {
            match written.recv_timeout(POLL_INTERVAL) {
                Ok(Some(all)) => bytes = Some(all),
                Ok(None) => return PluginEnd::TooMuch,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return PluginEnd::LeftOpen,
            }
        } else {
            std::thread::sleep(POLL_INTERVAL);
        }
        let now = Instant::now();
        if ended_at.is_none() && has_ended(child) {
            ended_at = Some(now);
        }
        match (ended_at, bytes.take()) {
            (Some(_), Some(all)) => return PluginEnd::Ended(all),
            (Some(ended), None) if now >= ended + OUTPUT_GRACE => return PluginEnd::LeftOpen,
            (_, before) => bytes = before,
        }
        if ended_at.is_none() && is_over(deadline) {
            return PluginEnd::TookTooLong;
        }
        if limit.is_reached() {
            return PluginEnd::Stopped;
        }
    }
}

/// Whether a process has ended; it is not waited for, so that its number stays its own.
fn has_ended(child: &Child) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    !matches!(waitid(WaitId::Pid(Pid::from_child(child)), options), Ok(None))
}
