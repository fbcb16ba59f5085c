"""Reads a site that was built: its links, its anchors, where it gets things from, and whether it
shows what the documents say."""

import html.parser
import pathlib
import re
import urllib.parse

from markdown_it import MarkdownIt

# Elements by which it is seen whether a page was read as GitHub reads it.
COUNTED = ["h1", "h2", "h3", "h4", "li", "table", "tr", "pre", "blockquote"]
# What a browser fetches by itself.
FETCHED = {
    ("script", "src"),
    ("img", "src"),
    ("link", "href"),
    ("iframe", "src"),
    ("source", "src"),
}


class Page(html.parser.HTMLParser):
    """What a page links to, fetches and has."""

    def __init__(self, text: str):
        super().__init__()
        self.anchors, self.links, self.fetched = set(), [], []
        self.counts = dict.fromkeys(COUNTED, 0)
        self.inside = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list) -> None:
        given = dict(attributes)
        if given.get("id"):
            self.anchors.add(given["id"])
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        for element, attribute in FETCHED:
            if tag == element and given.get(attribute):
                if given.get("rel") not in ("canonical", "next", "prev"):
                    self.fetched.append(given[attribute])
        if tag == "article":
            self.inside += 1
        elif self.inside and tag in self.counts:
            self.counts[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        if tag == "article":
            self.inside -= 1


def read_site(site: pathlib.Path) -> dict[pathlib.Path, Page]:
    return {path: Page(path.read_text()) for path in sorted(site.rglob("*.html"))}


def check_links(site: pathlib.Path, pages: dict[pathlib.Path, Page]) -> list[str]:
    """Links within the site to what is not there."""
    complaints = []
    for path, page in pages.items():
        if path.name == "404.html":
            continue
        for link in page.links + page.fetched:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = path
            if parts.path:
                target = (path.parent / urllib.parse.unquote(parts.path)).resolve()
            if target.is_dir():
                target /= "index.html"
            where = path.relative_to(site)
            if not target.is_file():
                complaints.append(f"{where}: {link} is not there")
            elif parts.fragment and target in pages:
                if urllib.parse.unquote(parts.fragment) not in pages[target].anchors:
                    complaints.append(f"{where}: {link} has no such anchor")
    return complaints


def check_fetched(site: pathlib.Path, pages: dict[pathlib.Path, Page]) -> list[str]:
    """What a browser would fetch from elsewhere."""
    complaints = [
        f"{path.relative_to(site)}: fetches {link}"
        for path, page in pages.items()
        for link in page.fetched
        if urllib.parse.urlsplit(link).netloc
    ]
    for path in sorted(site.rglob("*.css")):
        for link in re.findall(r"url\(\s*[\"']?((?:https?:)?//[^\"')]+)", path.read_text()):
            complaints.append(f"{path.relative_to(site)}: fetches {link}")
    return complaints


def count_elements(text: str) -> dict[str, int]:
    """The elements of a document as GitHub reads it."""
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    counts = dict.fromkeys(COUNTED, 0)
    for token in tokens:
        tag = "pre" if token.type in ("fence", "code_block") else token.tag
        if tag in counts and token.nesting >= 0 and (token.nesting or tag == "pre"):
            counts[tag] += 1
    return counts


def check_structure(site: pathlib.Path, originals: dict[pathlib.Path, str]) -> list[str]:
    """Pages that have other lists, tables or headings than their documents."""
    complaints = []
    for path, text in originals.items():
        shown, expected = Page(path.read_text()).counts, count_elements(text)
        for tag in COUNTED:
            if shown[tag] != expected[tag]:
                where = path.relative_to(site)
                complaints.append(
                    f"{where}: {shown[tag]} of {tag}, the document has {expected[tag]}"
                )
    return complaints
