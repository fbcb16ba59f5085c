//! `tessera`: serves neural networks as blocks.

#![forbid(unsafe_code)]

mod arguments;
mod commands;
mod inputs;
mod interrupt;
mod model_file;
mod npy;
mod output;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    interrupt::clean_up_on_interrupt();
    let arguments = arguments::Arguments::parse();
    let result = commands::run(arguments.command);
    interrupt::wait_if_interrupted();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tessera: {error}");
            ExitCode::FAILURE
        }
    }
}
