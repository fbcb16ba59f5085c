//! The commands, one file each.

mod cluster;
mod devices;
mod history;
mod inspect;
mod load;
mod part_profile;
mod plan;
mod profile;
mod repo;
mod repo_transfer;
mod run;
mod serve;
mod serving;
mod share;
mod split;
mod verify;
mod watching;
mod zoo;

use tessera_core::Result;

use crate::arguments::Command;

/// Carries out a command.
pub(crate) fn run_command(command: Command) -> Result<()> {
    match command {
        Command::Zoo(arguments) => zoo::run_zoo(&arguments),
        Command::Inspect(arguments) => inspect::run_inspect(&arguments),
        Command::Split(arguments) => split::run_split(&arguments),
        Command::Share(arguments) => share::run_share(&arguments),
        Command::Run(arguments) => run::run_model(&arguments),
        Command::Verify(arguments) => verify::run_verify(&arguments),
        Command::Profile(arguments) => profile::run_profile(&arguments),
        Command::Devices(arguments) => devices::run_devices(&arguments),
        Command::Repo(command) => repo::run_repo(&command),
        Command::Serve(arguments) => serve::run_serve(&arguments),
        Command::Put(arguments) => serving::run_put(&arguments),
        Command::Rm(arguments) => serving::run_rm(&arguments),
        Command::Tasks(server) => serving::run_tasks(&server),
        Command::Status(server) => serving::run_status(&server),
        Command::Events(arguments) => serving::run_events(&arguments),
        Command::Top(arguments) => watching::run_top(&arguments),
        Command::Requests(arguments) => watching::run_requests(&arguments),
        Command::History(arguments) => history::run_history(&arguments),
        Command::Undo(arguments) => history::run_undo(&arguments),
        Command::Controller(arguments) => cluster::run_controller(&arguments),
        Command::Node(command) => cluster::run_node(&command),
        Command::Nodes(arguments) => cluster::run_nodes(&arguments),
        Command::Token(command) => cluster::run_token(&command),
        Command::Load(arguments) => load::run_load(&arguments),
        Command::Plan(command) => plan::run_plan(&command),
        Command::Bench(command) => tessera_bench::run_bench(&command),
        Command::Instance => serve::run_instance(),
    }
}
