#!/usr/bin/env -S python3 -B
"""Writes grafana-board.json from board_rows.py.

make_board.py            writes the file beside it
make_board.py --check    ends with 1 where the file is not what would be written
"""

import json
import pathlib
import sys

import board_layout
import board_rows

BOARD = pathlib.Path(__file__).resolve().parent / "grafana-board.json"
DESCRIPTION = "Servers and nodes of Tessera; docs/monitoring.md says how to read it."


def variables() -> list[dict]:
    """What is chosen at the top of the board; the names that expressions use."""
    of_label = board_layout.label_variable
    return [
        board_layout.source_variable(),
        of_label("host", "Host", "label_values(tessera_queue_length, instance)"),
        of_label("task", "Task", 'label_values(tessera_task_ready{instance=~"$host"}, task)'),
        of_label("unit", "Unit", 'label_values(tessera_unit_up{instance=~"$host"}, unit)'),
    ]


def board_text() -> str:
    """The dashboard as its file has it."""
    board = board_layout.write_board(
        "Tessera", "tessera", DESCRIPTION, variables(), board_rows.ROWS
    )
    return json.dumps(board, indent=1, ensure_ascii=False) + "\n"


def main() -> int:
    if sys.argv[1:] == ["--check"]:
        if BOARD.read_text() == board_text():
            return 0
        print(f"error: {BOARD.name} is not what make_board.py writes: run it", file=sys.stderr)
        return 1
    if sys.argv[1:]:
        print(__doc__, file=sys.stderr)
        return 2
    BOARD.write_text(board_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
