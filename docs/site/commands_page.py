"""The page of all commands: what each says with --help, from the binary."""

import re
import subprocess

INTRODUCTION = """\
# Commands

What `tessera COMMAND --help` says, of every command. Most have `--json` for machines.

"""


def help_of(binary: str, words: list[str]) -> str:
    # Whatever the file is called, help names the command as users know it.
    ran = subprocess.run(
        ["tessera", *words, "--help"],
        executable=binary,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return ran.stdout.rstrip()


def subcommands(said: str) -> list[str]:
    """The commands below one, as its help lists them."""
    listed = re.search(r"^Commands:\n(.*?)(?:\n\n|\Z)", said, re.MULTILINE | re.DOTALL)
    names = re.findall(r"^  (\S+)", listed[1], re.MULTILINE) if listed else []
    return [name for name in names if name != "help"]


def write_commands(binary: str, words: list[str]) -> list[str]:
    """The part of the page about one command and those below it."""
    said = help_of(binary, words)
    level = "#" * min(len(words) + 1, 4)
    title = " ".join(["tessera", *words])
    lines = [f"{level} {title}", "", "```text", said, "```", ""] if words else []
    for name in subcommands(said):
        lines += write_commands(binary, [*words, name])
    return lines


def commands_page(binary: str) -> str:
    return INTRODUCTION + "\n".join(write_commands(binary, []))
