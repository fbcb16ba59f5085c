"""Becomes another program, which Linux ends when this process's parent has ended.

    python end_with_parent.py PARENT PROGRAM [ARGUMENT …]

A program of its own, as a fork of a process with threads can't safely do anything but this.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

# A request of Linux: send me this signal when the thread that started me has ended.
SET_SIGNAL_OF_PARENTS_DEATH = 1


def main() -> None:
    """Asks for the signal, and becomes the program."""
    parent, program = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None).prctl(SET_SIGNAL_OF_PARENTS_DEATH, int(signal.SIGTERM))
    if os.getppid() != parent:
        # It had ended before.
        sys.exit(1)
    try:
        os.execv(program[0], program)
    except OSError as error:
        sys.exit(f"tessera: {program[0]}: {error}")


if __name__ == "__main__":
    main()
