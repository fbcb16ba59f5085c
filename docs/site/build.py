"""Builds the site into target/site: lays pages out, makes those of the binary, builds, checks."""

import argparse
import pathlib
import shutil
import subprocess
import sys

import commands_page
import example_page
import site_check
from layout import ROOT, Layout, SiteError, page_of

PAGES = ROOT / "target/docs-source"
SITE = ROOT / "target/site"
CONFIGURATION = pathlib.Path(__file__).resolve().parent / "mkdocs.yml"
WITHOUT_BINARY = (
    "# {title}\n\nThis page comes from the binary, and the site was built without one.\n"
)


def write_pages(binary: str | None) -> Layout:
    shutil.rmtree(PAGES, ignore_errors=True)
    PAGES.mkdir(parents=True)
    layout = Layout(PAGES)
    layout.write_all()
    made = {
        "commands.md": ("Commands", commands_page.commands_page),
        "metrics.md": ("Metrics", example_page.metrics_page),
    }
    for name, (title, make) in made.items():
        text = make(binary) if binary else WITHOUT_BINARY.format(title=title)
        (PAGES / name).write_text(text)
    shutil.copy(CONFIGURATION.parent / "style.css", PAGES)
    return layout


def build_site() -> None:
    """`mkdocs build --strict`: with --quiet it would not count its warnings."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--clean"]
    command += ["--config-file", str(CONFIGURATION)]
    ran = subprocess.run(command, capture_output=True, text=True)
    if ran.returncode != 0:
        raise SiteError(f"mkdocs build: {ran.stderr}")


def html_of(page: pathlib.PurePosixPath) -> pathlib.Path:
    name = "index" if page.stem == "README" else page.stem
    return SITE / page.parent / f"{name}.html"


def check_site(layout: Layout) -> list[str]:
    pages = site_check.read_site(SITE)
    originals = {
        html_of(page_of(path)): (ROOT / path).read_text()
        for path in layout.done
        if path.suffix == ".md"
    }
    complaints = site_check.check_links(SITE, pages)
    complaints += site_check.check_fetched(SITE, pages)
    return complaints + site_check.check_structure(SITE, originals)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tessera")
    arguments = parser.parse_args()
    try:
        layout = write_pages(arguments.tessera)
        build_site()
    except SiteError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    complaints = check_site(layout)
    for complaint in complaints:
        print(f"error: {complaint}", file=sys.stderr)
    pages = len(list(SITE.rglob("*.html")))
    print(f"{pages} pages in {SITE.relative_to(ROOT)}, {len(complaints)} complaints")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
