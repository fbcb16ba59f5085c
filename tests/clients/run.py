"""Runs the tests of every client, each in a process of its own, against one server."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import server

HERE = Path(__file__).resolve().parent
SECONDS = 240
# Those that need a server of their own; the others share one.
ALONE = ("test_processes", "test_control_api")
MODULES = (
    ("test_triton_http", "tritonclient.http and .aio"),
    ("test_http_errors", "errors over HTTP"),
    ("test_triton_grpc", "tritonclient.grpc and .aio"),
    ("test_shared_memory", "system shared memory"),
    ("test_kserve", "KServe's clients"),
    ("test_perf_analyzer", "perf_analyzer"),
    ("test_processes", "units in processes of their own"),
    ("test_control_api", "the control plane (schemathesis)"),
)


def run(module: str, variables: dict[str, str]) -> tuple[str, str, str]:
    """Runs the tests of a module: how it went, how many, and what it said."""
    command = [sys.executable, "-m", "unittest", "--verbose", module]
    try:
        ended = subprocess.run(
            command,
            cwd=HERE,
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired as late:
        said = (late.stdout or b"").decode(errors="replace")
        return "FAILED", f"took more than {SECONDS} s", said
    counted = re.search(r"^Ran (\d+) tests?", ended.stdout, re.MULTILINE)
    count = int(counted[1]) if counted else 0
    last = ended.stdout.strip().splitlines()[-1] if ended.stdout.strip() else "said nothing"
    if ended.returncode != 0:
        return "FAILED", f"{count} tests, {last}", ended.stdout
    skipped = re.search(r"skipped=(\d+)", last)
    if skipped and int(skipped[1]) == count:
        return "SKIPPED", f"{count} tests", ended.stdout
    # A module without tests has passed nothing.
    if count == 0:
        return "FAILED", "no tests", ended.stdout
    return "passed", f"{count} tests", ended.stdout


def main() -> int:
    wanted = set(sys.argv[1:])
    unknown = wanted - {module for module, _ in MODULES}
    if unknown:
        raise SystemExit(f"no such tests: {', '.join(sorted(unknown))}")
    print(f"testing {server.binary()}")
    results = []
    for module, title in MODULES:
        if wanted and module not in wanted:
            continue
        variables = dict(os.environ)
        if module in ALONE:
            server.stop_shared()
        else:
            variables[server.ATTACH] = json.dumps(server.shared().told())
        start = time.monotonic()
        state, detail, said = run(module, variables)
        detail += f", {time.monotonic() - start:.0f} s"
        print(f"{state:8} {title}: {detail}", flush=True)
        if state == "FAILED":
            print(said, flush=True)
        results.append((state, title, detail))
    server.stop_shared()

    print("\nSummary")
    for state, title, detail in results:
        print(f"  {state:8} {title}: {detail}")
    skipped = [title for state, title, _ in results if state == "SKIPPED"]
    if skipped:
        print(f"\n*** SKIPPED, so not tested at all: {', '.join(skipped)} ***")
    failed = [title for state, title, _ in results if state == "FAILED"]
    if failed:
        print(f"\nFAILED: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
