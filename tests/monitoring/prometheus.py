"""A real Prometheus that scrapes what it is given, once a second."""

import json
import pathlib
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

import rules

READY_SECONDS = 30
STOP_SECONDS = 10
CONFIGURATION = """\
global:
  scrape_interval: 1s
  evaluation_interval: 1s
rule_files: [{rules}]
scrape_configs:
  - job_name: tessera
    static_configs:
      - targets: [{targets}]
"""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Prometheus:
    """A running Prometheus; its data and its log are in `folder`."""

    def __init__(self, binary: str, folder: pathlib.Path, targets: list[str]):
        folder.mkdir()
        self.targets = len(targets)
        self.address = f"127.0.0.1:{free_port()}"
        self.log = folder / "log"
        configuration = folder / "prometheus.yml"
        configuration.write_text(
            CONFIGURATION.format(rules=rules.RULES, targets=", ".join(map(repr, targets)))
        )
        command = [
            binary,
            f"--config.file={configuration}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={self.address}",
        ]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def wait_until_ready(self) -> None:
        """Until all targets were scraped: what moves before that is not seen to move."""
        until = time.monotonic() + READY_SECONDS
        while time.monotonic() < until and self.process.poll() is None:
            try:
                if self.values("count(up == 1)") == [self.targets]:
                    return
            except (OSError, RuntimeError):
                pass
            time.sleep(0.1)
        raise RuntimeError(f"Prometheus did not start: {self.log.read_text()}")

    def get(self, path: str, **parameters: str) -> dict | list:
        """What its API answers; `RuntimeError` with what is wrong where it refuses."""
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=20) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            # As JSON, but for one that is not ready yet.
            raise RuntimeError(error.read().decode()) from None

    def values(self, expression: str) -> list[float]:
        """The values of an instant query: one for each series of the answer."""
        answer = self.get("query", query=expression)
        if answer["resultType"] == "scalar":
            return [float(answer["result"][1])]
        return [float(series["value"][1]) for series in answer["result"]]

    def label_values(self, selector: str, label: str) -> set[str]:
        """What a variable of a board gets."""
        found = self.get("series", **{"match[]": selector})
        return {series[label] for series in found if label in series}

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
