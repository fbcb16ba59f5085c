//! The page on planning shows commands with what they print: they print exactly that.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::succeed;

fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Each command of the console blocks, and what stands below it.
fn commands(markdown: &str) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    let mut inside = false;
    for line in markdown.lines() {
        if line.starts_with("```") {
            inside = !inside && line == "```console";
            continue;
        }
        if !inside {
            continue;
        }
        match (line.strip_prefix("$ "), found.last_mut()) {
            (Some(command), _) => found.push((command.to_owned(), String::new())),
            (None, Some((_, output))) => {
                output.push_str(line);
                output.push('\n');
            }
            (None, None) => panic!("output without a command: {line}"),
        }
    }
    found
}

#[test]
fn every_command_of_the_page_prints_what_the_page_says() {
    let page = fs::read_to_string(project().join("docs/planning.md")).unwrap();
    let mut run = 0;
    for (command, output) in commands(&page) {
        let mut words = command.split_whitespace();
        if words.next() != Some("tessera") {
            continue;
        }
        let arguments: Vec<&str> = words.collect();
        let writes = arguments.iter().any(|word| ["--svg", "--plot", ">", "|"].contains(word));
        assert!(!writes, "{command}: would write a file, or needs a shell");
        let printed = succeed(&project(), &arguments);
        assert_eq!(printed, output, "$ {command}\n{printed}");
        run += 1;
    }
    assert!(run >= 5, "only {run} commands with their output");
}

#[test]
fn blocks_of_the_console_are_read_as_they_are_meant() {
    let page = "text\n```console\n$ tessera a\n1\n\n2\n$ tessera b\n```\n```sh\n$ tessera c\n```\n";
    let expected = [("tessera a", "1\n\n2\n"), ("tessera b", "")];
    let expected = expected.map(|(command, output)| (command.to_owned(), output.to_owned()));
    assert_eq!(commands(page), expected);
}
