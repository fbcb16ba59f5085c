//! The README and the page of figures name commands: they exist, and take the options that are
//! shown. What the README shows of their output is what they print.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use common::{succeed, tessera};
use tempfile::tempdir;

/// Pages whose commands are tried.
const PAGES: [&str; 2] = ["README.md", "docs/figures.md"];

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
fn every_script_that_a_page_names_exists() {
    for page in PAGES {
        let text = read(page);
        let code = code_lines(&text).into_iter().chain(inline_code(&text));
        for line in code {
            for word in line.split_whitespace() {
                let word = word.trim_start_matches("./");
                if word.starts_with("scripts/") {
                    assert!(project().join(word).is_file(), "{word}: in {page} alone");
                }
            }
        }
    }
}

#[test]
fn every_command_line_of_a_page_is_one_that_tessera_takes() {
    for text in PAGES.map(read) {
        for line in code_lines(&text) {
            if let Some(arguments) = arguments_of(&line, "tessera") {
                assert_parses(&arguments);
            }
        }
        // In running text a command may have placeholders; its names must be some still.
        for span in inline_code(&text) {
            let Some(arguments) = arguments_of(&span, "tessera") else {
                continue;
            };
            let is_name = |word: &&str| word.chars().all(|c| c.is_ascii_lowercase());
            let names = arguments.into_iter().take(2).take_while(is_name);
            assert_parses(&names.collect::<Vec<_>>());
        }
    }
}

#[test]
fn the_plan_in_the_readme_is_what_tessera_prints() {
    let readme = read("README.md");
    let (_, shown) = readme.split_once("$ tessera plan ").unwrap();
    let (command, output) = shown.split_once('\n').unwrap();
    let (output, _) = output.split_once("```").unwrap();
    let mut arguments = vec!["plan"];
    arguments.extend(command.split_whitespace());
    assert_eq!(succeed(&project(), &arguments), output, "$ tessera plan {command}");
}

#[test]
fn what_the_readme_shows_of_the_demo_is_what_the_demo_says() {
    let (readme, demo) = (read("README.md"), read("scripts/demo"));
    let (_, shown) = readme.split_once("$ scripts/demo\n").unwrap();
    let (shown, _) = shown.split_once("```").unwrap();
    let said: Vec<&str> = shown.lines().filter_map(|line| line.strip_prefix("# ")).collect();
    for line in &said {
        assert!(demo.contains(line), "{line}: in the README alone");
    }
    assert!(said.len() > 3, "the README shows {} lines of the demo", said.len());
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
