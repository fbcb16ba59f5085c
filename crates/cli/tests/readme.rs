//! The README names commands: they exist, and take the options that it shows.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use common::tessera;
use tempfile::tempdir;

fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(name: &str) -> String {
    let path = project().join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The lines inside fenced code blocks; one that ends in a backslash is joined with the next.
fn code_lines(markdown: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let (mut inside, mut open) = (false, String::new());
    for line in markdown.lines() {
        if line.trim_start().starts_with("```") {
            inside = !inside;
            open.clear();
        } else if inside {
            match line.strip_suffix('\\') {
                Some(part) => open.push_str(part),
                None => lines.push(std::mem::take(&mut open) + line),
            }
        }
    }
    assert!(!inside, "a code block is not closed");
    lines
}

/// What stands between single backticks outside of code blocks.
fn inline_code(markdown: &str) -> Vec<String> {
    let mut spans = Vec::new();
    let mut inside = false;
    for line in markdown.lines() {
        if line.trim_start().starts_with("```") {
            inside = !inside;
        } else if !inside {
            let odd = line.split('`').skip(1).step_by(2);
            spans.extend(odd.map(str::to_owned));
        }
    }
    spans
}

/// The words of a command line after its first, where the first is `program`; what the shell would
/// take for itself (a pipe, a comment) ends them.
fn arguments_of<'a>(line: &'a str, program: &str) -> Option<Vec<&'a str>> {
    let line = line.trim().trim_start_matches("$ ");
    let mut words = line.split_whitespace();
    let first = words.next()?;
    (Path::new(first).file_name()? == program).then_some(())?;
    let of_shell = |word: &&str| {
        ["|", ">", ">>", "<", "&&", "||", "&", ";", "#"].contains(word) || word.starts_with('#')
    };
    let words = words.take_while(|word| !of_shell(word));
    Some(words.map(|word| word.trim_matches(['"', '\'', ';'])).collect())
}

/// Whether the binary would take these arguments: it reads them all before it prints its help.
fn assert_parses(arguments: &[&str]) {
    let folder = tempdir().unwrap();
    let ran = tessera(folder.path(), &[arguments, &["--help"]].concat());
    assert_eq!(ran.code, Some(0), "tessera {arguments:?}: {}", ran.err);
}

#[test]
fn the_two_commands_of_the_readme_exist_and_can_be_run() {
    let readme = read("README.md");
    for script in ["scripts/demo", "scripts/test"] {
        assert!(readme.contains(script), "the README says nothing of {script}");
        let metadata = fs::metadata(project().join(script)).unwrap();
        assert!(metadata.is_file(), "{script}");
        assert_ne!(metadata.permissions().mode() & 0o111, 0, "{script}");
    }
}

#[test]
fn every_script_that_the_readme_names_exists() {
    let readme = read("README.md");
    let code = code_lines(&readme).into_iter().chain(inline_code(&readme));
    for line in code {
        for word in line.split_whitespace() {
            let word = word.trim_start_matches("./");
            if word.starts_with("scripts/") {
                assert!(project().join(word).is_file(), "{word}: in the README alone");
            }
        }
    }
}

#[test]
fn every_command_line_in_the_readme_is_one_that_tessera_takes() {
    let readme = read("README.md");
    for line in code_lines(&readme) {
        if let Some(arguments) = arguments_of(&line, "tessera") {
            assert_parses(&arguments);
        }
    }
    // In running text a command may have placeholders and dots; its name must be one still.
    for span in inline_code(&readme) {
        let Some(arguments) = arguments_of(&span, "tessera") else {
            continue;
        };
        let names = arguments.into_iter().take(1);
        let is_name = |word: &&str| word.chars().all(|c| c.is_ascii_lowercase());
        assert_parses(&names.filter(is_name).collect::<Vec<_>>());
    }
}

#[test]
fn every_step_of_the_demo_is_one_that_tessera_takes() {
    let demo = read("scripts/demo");
    let steps: Vec<Vec<&str>> =
        demo.lines().filter_map(|line| arguments_of(line, "step")).collect();
    for step in &steps {
        assert_parses(step);
    }
    assert!(steps.len() > 3, "the demo has {} steps", steps.len());
}
