"""What an operator lives through, in a quarter of a minute: load, refusals, failures, a death.

Two servers of the same two models, which share their first layers and a middle one and have an
exit. `apart` has each unit in a process of its own; `tight` has memory for one large unit alone."""

import json
import os
import pathlib
import signal
import subprocess
import time

from failing_model import ROWS, failing_model
from server import Server, run

# Bytes that the weights of `tight` may take: less than the last unit of either model.
TIGHT_MEMORY = "30MB"
SECONDS = 14


class Scene:
    """The servers, and what happens to them."""

    def __init__(self, binary: str, folder: pathlib.Path):
        self.folder = folder
        cats, dogs, rows = (folder / f"{name}.onnx" for name in ("cats", "dogs", "rows"))
        run(binary, "zoo", "resnet18", "--exits", "--output", cats)
        sibling = ["--seed", "7", "--share-with", "0", "--stages", "3"]
        run(binary, "zoo", "resnet18", "--exits", "--output", dogs, *sibling)
        rows.write_bytes(failing_model())
        # Nobody listens there: spans are lost.
        traces = ["--traces", "http://127.0.0.1:9"]
        self.apart = Server(
            binary, folder / "apart", [cats, dogs, rows], "--isolation", "process", *traces
        )
        self.tight = Server(
            binary, folder / "tight", [cats, dogs], "--host-memory", TIGHT_MEMORY, "--no-batching"
        )

    def servers(self) -> list[Server]:
        return [self.apart, self.tight]

    def wait_until_ready(self) -> None:
        for server in self.servers():
            server.wait_until_ready()

    def play(self) -> None:
        """All that happens. Rates are above zero for some seconds after it."""
        apart, seconds = self.apart, str(SECONDS)
        apart.change("PUT", "/v1/tasks/dogs", {"model": "dogs", "degrade": True})
        # At this certainty some requests leave at the exit and some go on.
        apart.change("PUT", "/v1/tasks/cats/exits/exit_stage2", {"threshold": 0.75})
        loads = [
            apart.load("cats", "--clients", "2", "--duration", seconds),
            apart.load("dogs", "--clients", "1", "--duration", seconds),
            self.tight.load("cats", "--clients", "1", "--duration", seconds),
            self.tight.load("dogs", "--clients", "1", "--duration", seconds),
        ]
        try:
            time.sleep(2)
            self.kill_shared_unit()
            time.sleep(2)
            self.degrade_dogs()
            self.refuse_cats()
            self.fail_rows()
            for load in loads:
                self.finish(load)
        finally:
            for load in loads:
                end(load)

    def kill_shared_unit(self) -> None:
        """Ends the process of a unit that both tasks pass."""
        shared = next(unit for unit in self.apart.units() if {"cats", "dogs"} <= set(unit["tasks"]))
        os.kill(shared["instances"][0]["process"], signal.SIGKILL)

    def degrade_dogs(self) -> None:
        """Stops what dogs has after its exit: the exit answers instead."""
        own = [unit for unit in self.apart.units() if unit["tasks"] == ["dogs"]]
        last = max(own, key=lambda unit: unit["weight_bytes"])["name"]
        self.apart.change("POST", f"/v1/units/{last}/stop")
        time.sleep(1.5)
        self.apart.change("POST", f"/v1/units/{last}/start")

    def refuse_cats(self) -> None:
        """Asks for answers within a millisecond."""
        hurried = ["--clients", "2", "--duration", "2", "--deadline", "1", "--send-deadline"]
        load = self.apart.load("cats", *hurried)
        try:
            told = self.finish(load)
        finally:
            end(load)
        if not told["outcomes"]["status"].get("503"):
            raise RuntimeError(f"nothing was refused: {told['outcomes']}")

    def fail_rows(self) -> None:
        """Asks for a row that is not there, beside one that is."""
        for number, expected in [(ROWS + 5, 500), (1, 200)] * 3:
            tensor = {"name": "number", "shape": [1], "datatype": "INT64", "data": [number]}
            status = self.apart.infer("rows", {"inputs": [tensor]})
            if status != expected:
                raise RuntimeError(f"row {number}: {status}, expected {expected}")

    @staticmethod
    def finish(load: subprocess.Popen) -> dict:
        said, wrong = load.communicate(timeout=SECONDS + 30)
        if load.returncode != 0:
            raise RuntimeError(f"tessera load: {wrong.decode()}")
        return json.loads(said)

    def stop(self) -> None:
        for server in self.servers():
            server.stop()


def end(process: subprocess.Popen) -> None:
    if process.poll() is None:
        process.kill()
        process.communicate()
