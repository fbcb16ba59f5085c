//! `tessera`: serves neural networks as blocks.

#![forbid(unsafe_code)]

mod arguments;
mod commands;
mod logs;
mod model_archive;

use std::process::ExitCode;

use clap::Parser;
use tessera_command::interrupt;
use tessera_report::output;

/// Prints what the command line asks for (help, the version), or what is wrong with it in one line.
fn explain_usage_error(error: &clap::Error) -> ExitCode {
    use clap::error::ErrorKind;
    let is_answer = matches!(
        error.kind(),
        ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    );
    if is_answer {
        // Where nobody reads the help any more, there is nobody to tell.
        drop(error.print());
        return if error.use_stderr() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    }
    let text = error.to_string();
    let problem: Vec<&str> =
        text.lines().take_while(|line| !line.is_empty()).flat_map(str::split_whitespace).collect();
    let problem = problem.join(" ");
    let problem = problem.strip_prefix("error: ").unwrap_or(&problem);
    output::print_notice(&format!("{problem}; see --help"));
    ExitCode::FAILURE
}

fn main() -> ExitCode {
    interrupt::clean_up_on_interrupt();
    let arguments = match arguments::Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return explain_usage_error(&error),
    };
    let result = commands::run_command(arguments.command);
    interrupt::wait_if_interrupted();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::print_notice(&error.to_string());
            ExitCode::FAILURE
        }
    }
}
