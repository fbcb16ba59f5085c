"""The page of all metrics: their tables, and what a server tells, from the binary.

The server is that of tests/monitoring; the tables are those of deploy/monitoring."""

import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "deploy/monitoring"), str(ROOT / "tests/monitoring")]

import metrics_table  # noqa: E402
import source  # noqa: E402
from metrics_page import merge_pages, read_page  # noqa: E402
from server import Server, run  # noqa: E402

PAGE = """\
# Metrics

What `GET /metrics` tells, from a server that was asked while this page was made. Metrics of GPUs
are those of the source. [Monitoring](monitoring.md) says how to use them.

{tables}
## A page of them

A server with one task, one answer, `--host-memory` and `--traces`:

```text
{example}
```
"""


def ask_server(binary: str) -> str:
    """The page of a server on which each metric has a series."""
    with tempfile.TemporaryDirectory(prefix="tessera-docs-") as folder:
        folder = pathlib.Path(folder)
        run(binary, "zoo", "resnet18", "--exits", "--output", folder / "cats.onnx")
        options = ["--host-memory", "1GB", "--no-batching", "--traces", "http://127.0.0.1:9"]
        # All that comes to the exit leaves there.
        options += ["--exit", "exit_stage2=1"]
        server = Server(binary, folder / "server", [folder / "cats.onnx"], *options)
        try:
            server.wait_until_ready()
            run(binary, "load", "cats", "--url", server.http, "--requests", "1", "--warm-up", "0")
            return server.page()
        finally:
            server.stop()


def metrics_page(binary: str) -> str:
    page = ask_server(binary)
    families = merge_pages([read_page(page), source.gpu_page()])
    tables = metrics_table.write_tables(families).replace("### ", "## ")
    return PAGE.format(tables=tables, example=page.rstrip())
