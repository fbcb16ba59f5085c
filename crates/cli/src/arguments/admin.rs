//! The command line of those who look after a cluster.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Who asks a control plane.
#[derive(Args)]
pub(crate) struct AskerArguments {
    /// Authority of its certificate (PEM), for https
    #[arg(long, value_name = "FILE", env = "TESSERA_CA")]
    pub(crate) ca: Option<PathBuf>,
    /// Token of its --token-file that lets you ask
    #[arg(long, value_name = "TOKEN", env = "TESSERA_BEARER", hide_env_values = true)]
    pub(crate) bearer: Option<String>,
}

/// Where the controller is, and who asks it.
#[derive(Args)]
pub(crate) struct AdminArguments {
    /// The control plane of the cluster's controller
    #[arg(
        long,
        value_name = "URL",
        default_value = "http://127.0.0.1:8003",
        env = "TESSERA_CONTROLLER"
    )]
    pub(crate) controller: String,
    #[command(flatten)]
    pub(crate) asker: AskerArguments,
}

#[derive(Subcommand)]
pub(crate) enum TokenCommand {
    /// Make a token that lets one node join
    Create(CreateToken),
    /// List the tokens, without their secrets
    List(ListArguments),
    /// Have a token let nobody in any more
    Revoke(RevokeToken),
}

#[derive(Args)]
pub(crate) struct CreateToken {
    /// Seconds for which it lets a node in
    #[arg(long, default_value_t = 3600, value_name = "SECONDS")]
    pub(crate) life: u64,
    #[command(flatten)]
    pub(crate) admin: AdminArguments,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct RevokeToken {
    /// What the token is listed under
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) admin: AdminArguments,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct ListArguments {
    #[command(flatten)]
    pub(crate) admin: AdminArguments,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
