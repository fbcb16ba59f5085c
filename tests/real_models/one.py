"""Makes one model and checks it, in a process of its own: one.py BINARY NAME RESULT."""

import json
import signal
import sys
import time
from pathlib import Path

import catalogue
import files


def examined(binary: Path, name: str) -> dict:
    """All that was found about a model, also where it can't be made."""
    start = time.monotonic()
    model = catalogue.model(name)
    try:
        file = files.ensure(model)
    except Exception as error:
        return {"name": name, "reasons": [f"can't be made: {type(error).__name__}: {error}"]}
    made = time.monotonic() - start
    # Not before: what makes models needs no ONNX Runtime, and this does.
    from check import check

    result = check(binary, model, file)
    result["seconds_to_make"] = round(made, 1)
    result["seconds"] = round(time.monotonic() - start, 1)
    return result


def main():
    binary, name, result = sys.argv[1:]
    # So that a server of this process is stopped too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    Path(result).write_text(json.dumps(examined(Path(binary), name)))


if __name__ == "__main__":
    main()
