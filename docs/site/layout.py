"""Lays the documents out as pages of a site: those of docs/, and what they link to outside it.

A page stays where the document is in the project, but for docs/, whose pages are at the top, and
README.md, which is the first page. Links are made to fit. A file that is no document goes along as
it is."""

import pathlib
import re
import shutil

ROOT = pathlib.Path(__file__).resolve().parents[2]
LINK = re.compile(r"(?<=\]\()([^()\s]+)(?=\))")
# Code, in which nothing is a link.
CODE = re.compile(r"(^```.*?^```$|``.+?``|`[^`]+`)", re.MULTILINE | re.DOTALL)
# Pages that are there without a link to them.
FIRST = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"]


class SiteError(Exception):
    """The site can't be built: a link that leads nowhere, or what mkdocs says."""


def page_of(path: pathlib.PurePosixPath) -> pathlib.PurePosixPath:
    """Where a file of the project is in the site."""
    if path == pathlib.PurePosixPath("README.md"):
        return pathlib.PurePosixPath("index.md")
    if path.parts[0] == "docs":
        return path.relative_to("docs")
    return path


def relative(target: pathlib.PurePosixPath, page: pathlib.PurePosixPath) -> str:
    """A link from a page to another."""
    common = 0
    while common < len(page.parent.parts) and page.parts[common] == target.parts[common]:
        common += 1
    up = [".."] * (len(page.parent.parts) - common)
    return "/".join([*up, *target.parts[common:]])


def is_elsewhere(link: str) -> bool:
    return bool(re.match(r"[a-z][a-z0-9+.-]*:", link)) or link.startswith("#")


class Layout:
    """The pages that are laid out, and those that are still to be."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.waiting: list[pathlib.PurePosixPath] = []
        self.done: set[pathlib.PurePosixPath] = set()
        self.wrong: list[str] = []

    def add(self, path: pathlib.PurePosixPath) -> None:
        if path not in self.done:
            self.done.add(path)
            self.waiting.append(path)

    def write_all(self) -> None:
        """Writes all pages, and what they link to."""
        for name in FIRST:
            self.add(pathlib.PurePosixPath(name))
        for file in sorted((ROOT / "docs").iterdir()):
            if file.is_file():
                self.add(pathlib.PurePosixPath("docs", file.name))
        while self.waiting:
            path = self.waiting.pop()
            target = self.folder / page_of(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix == ".md":
                target.write_text(self.fit((ROOT / path).read_text(), path))
            else:
                shutil.copyfile(ROOT / path, target)
        if self.wrong:
            raise SiteError("\n".join(self.wrong))

    def fit(self, text: str, path: pathlib.PurePosixPath) -> str:
        """A document with links that fit, as Python's Markdown reads it."""
        parts = CODE.split(text)
        for number in range(0, len(parts), 2):
            parts[number] = LINK.sub(lambda link: self.fit_link(link[1], path), parts[number])
        return fit_lists("".join(parts))

    def fit_link(self, link: str, path: pathlib.PurePosixPath) -> str:
        if is_elsewhere(link):
            return link
        file, hash_, anchor = link.partition("#")
        found = (ROOT / path.parent / file).resolve()
        if not found.is_relative_to(ROOT) or not found.exists():
            self.wrong.append(f"{path}: a link to {link}, which is not there")
            return link
        if found.is_dir():
            self.wrong.append(f"{path}: a link to {link}, which is a folder and no page")
            return link
        target = pathlib.PurePosixPath(found.relative_to(ROOT))
        self.add(target)
        return relative(page_of(target), page_of(path)) + hash_ + anchor


def fit_lists(text: str) -> str:
    """Markdown of GitHub as Python's reads it: a list within a list stands four columns further to
    the right, and a list has an empty line before it."""
    lines, inside, before = [], False, ""
    for line in text.split("\n"):
        is_fence = line.lstrip().startswith("```")
        if not inside and not is_fence:
            is_item = re.match(r"(?:[-*+]|1\.) ", line)
            if is_item and before.strip() and not re.match(r" |[-*+] |\d+\. ", before):
                lines.append("")
            spaces = len(line) - len(line.lstrip(" "))
            line = " " * spaces + line
        inside ^= is_fence
        lines.append(line)
        before = line
    return "\n".join(lines)
