//! The command line of those who look after a running server.

use std::path::PathBuf;

use clap::Args;

use super::admin::AskerArguments;

/// Where the server is, and who asks it.
#[derive(Args)]
pub(crate) struct ServerArguments {
    /// The control plane of the server, or of a cluster's controller
    #[arg(
        long,
        value_name = "URL",
        default_value = "http://127.0.0.1:8003",
        env = "TESSERA_SERVER"
    )]
    pub(crate) server: String,
    #[command(flatten)]
    pub(crate) asker: AskerArguments,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct PutArguments {
    /// ONNX files; NAME=FILE where the file's name is not what it should be called
    #[arg(required = true, num_args = 1.., value_name = "[NAME=]FILE")]
    pub(crate) models: Vec<PathBuf>,
    /// Name of the task that serves it [default: the model's]
    #[arg(long, value_name = "NAME")]
    pub(crate) task: Option<String>,
    /// What else the task is to be like, as PUT /v1/tasks has it: deadline_ms=500, replicas=2,
    /// residency=pinned; repeat for more
    #[arg(long = "set", value_name = "FIELD=VALUE")]
    pub(crate) fields: Vec<String>,
    /// Only keep the model: no task serves it
    #[arg(long, conflicts_with_all = ["task", "fields"])]
    pub(crate) no_task: bool,
    /// Only say what would be shared, and what would take how much memory
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) server: ServerArguments,
}

#[derive(Args)]
pub(crate) struct RmArguments {
    /// Names of tasks
    #[arg(required = true, num_args = 1.., value_name = "TASK")]
    pub(crate) tasks: Vec<String>,
    /// Forget their models, too, where no other task serves them
    #[arg(long)]
    pub(crate) model: bool,
    /// Only say what would be stopped
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) server: ServerArguments,
}

#[derive(Args)]
pub(crate) struct WatchArguments {
    /// End after so many events
    #[arg(long, value_name = "COUNT")]
    pub(crate) count: Option<u64>,
    /// Only these kinds, such as request, up, down; repeat for more
    #[arg(long, value_name = "KIND")]
    pub(crate) kind: Vec<String>,
    #[command(flatten)]
    pub(crate) server: ServerArguments,
}

#[derive(Args)]
pub(crate) struct LiveArguments {
    /// End after so many seconds
    #[arg(long, value_name = "COUNT")]
    pub(crate) count: Option<u64>,
    #[command(flatten)]
    pub(crate) server: ServerArguments,
}

#[derive(Args)]
pub(crate) struct RequestsArguments {
    /// Only those of this task
    #[arg(long, value_name = "NAME")]
    pub(crate) task: Option<String>,
    #[command(flatten)]
    pub(crate) server: ServerArguments,
}

#[derive(Args)]
pub(crate) struct UndoArguments {
    /// Number of the change, as `tessera history` lists it
    pub(crate) number: u64,
    #[command(flatten)]
    pub(crate) server: ServerArguments,
}
