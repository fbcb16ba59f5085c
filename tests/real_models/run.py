"""Makes and checks real models one after the other, each in a process of its own, and sums up."""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import catalogue

HERE = Path(__file__).resolve().parent
# What one model may take, with all that has to be fetched for it.
SECONDS = 2400
STOP_SECONDS = 90
# How many models may be wrong: of 88, at least 86 are to be right.
MOST_WRONG = 2
COLUMNS = ("cut points", "verify", "served", "served cut", "equal", "largest hop")
WIDTHS = (11, 12, 7, 11, 9, 12)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/real-models")
    parser.add_argument("binary", type=Path, help="the tessera to check")
    parser.add_argument("--only", metavar="TEXT", help="models with this in their name")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write all that was found")
    return parser.parse_args()


def examine(binary: Path, name: str) -> dict:
    """What a process of its own finds about a model."""
    with tempfile.TemporaryDirectory(prefix="tessera-real-models-") as folder:
        result, log = Path(folder) / "result.json", Path(folder) / "log"
        command = [sys.executable, HERE / "one.py", binary, name, result]
        with log.open("wb") as said:
            process = subprocess.Popen(
                command, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
            )
        why = wait(process)
        if why is None and result.exists():
            return json.loads(result.read_text())
        lines = log.read_text(errors="replace").strip().splitlines()
        last = lines[-1] if lines else "it said nothing"
        return {"name": name, "reasons": [f"{why or 'the check failed'}: {last}"]}


def wait(process: subprocess.Popen) -> str | None:
    """Waits for the process of a model; says what was wrong with its end."""
    try:
        code = process.wait(SECONDS)
        return None if code == 0 else f"the check ended with {code}"
    except subprocess.TimeoutExpired:
        return f"the check took more than {SECONDS} s"
    finally:
        if process.returncode != 0:
            end(process)


def end(process: subprocess.Popen):
    """Ends a process and the server that it may have started, which are a group of their own."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, how)
            process.wait(STOP_SECONDS)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass


def row(result: dict) -> tuple[str, ...]:
    """The columns of a model."""
    cuts = result.get("cuts", {})
    whole, cut = result.get("served", {}), result.get("served_cut", {})
    return (
        f"{cuts['open']}/{cuts['fixed']}" if "open" in cuts else "-",
        verified(result.get("verify", [])),
        "yes" if "steps" in whole else "no",
        f"yes, {cut['steps']}" if "steps" in cut else "no" if cut else "-",
        equal([whole, cut] if cut else [whole]),
        size(cuts.get("largest_hop")),
    )


def verified(runs: list[dict]) -> str:
    """`ok` where nothing is different at all, or by how much it is, or that it failed."""
    if not runs or any("error" in run for run in runs):
        return "FAILED"
    # It is null where it can't be told, as of outputs that are not finite.
    largest = max(run["relative"] or 0.0 for run in runs)
    return f"{largest:.1e}" if largest else "ok"


def equal(servings: list[dict]) -> str:
    """The same of answers."""
    if any("apart" not in serving for serving in servings):
        return "NO"
    largest = max(serving["apart"] for serving in servings)
    return f"{largest:.1e}" if largest else "yes"


def size(count: int | None) -> str:
    if count is None:
        return "-"
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


def print_row(name: str, width: int, columns: tuple[str, ...], note: str = ""):
    cells = "".join(f"{text:<{room}}" for text, room in zip(columns, WIDTHS, strict=True))
    print(f"{name:<{width}}  {cells}{note}".rstrip(), flush=True)


def same_as(result: dict, seen: dict[str, str]) -> str | None:
    """The model before this one whose file is the same."""
    content = result.get("sha256")
    return seen.setdefault(content, result["name"]) if content else result["name"]


def check_all(binary: Path, names: list[str]) -> list[dict]:
    """Checks models, and prints a row for each; a file that was there before counts once."""
    width = max(len(name) for name in names)
    print_row("model", width, COLUMNS)
    seen, results = {}, []
    for name in names:
        result = examine(binary, name)
        first = same_as(result, seen)
        if first != name:
            print_row(name, width, ("-",) * len(COLUMNS), f"the same file as {first}")
            continue
        result["right"] = not result["reasons"]
        results.append(result)
        print_row(name, width, row(result), "" if result["right"] else "WRONG")
    return results


def more(reasons: list[str]) -> str:
    """That there are others, which `--json` has."""
    others = len(set(reasons)) - 1
    return f" (and {others} more)" if others else ""


def main() -> int:
    given = arguments()
    # So that the process of a model is ended too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    names = [model.name for model in catalogue.models()]
    if given.only:
        names = [name for name in names if given.only in name]
        if not names:
            raise SystemExit(f"no model has {given.only} in its name")
    results = check_all(given.binary, names)
    if given.json:
        given.json.write_text(json.dumps(results, indent=2) + "\n")
    wrong = [result for result in results if not result["right"]]
    right = len(results) - len(wrong)
    failing = f"; failing: {', '.join(result['name'] for result in wrong)}" if wrong else ""
    print(f"\n{right} of {len(results)} right{failing}")
    for result in wrong:
        print(f"  {result['name']}: {result['reasons'][0]}{more(result['reasons'])}")
    return 1 if (wrong if given.only else len(wrong) > MOST_WRONG) else 0


if __name__ == "__main__":
    sys.exit(main())
