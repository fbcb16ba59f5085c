"""examples/monitoring: whether its files fit together. There is no Docker here to run them."""

import pathlib
import subprocess

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples/monitoring"
BOARD = ROOT / "deploy/monitoring/grafana-board.json"
# What the reader brings.
NOT_THERE = {EXAMPLE / "models"}


def load(name: str) -> dict:
    return yaml.safe_load((EXAMPLE / name).read_text())


def mounts(service: dict) -> dict[str, pathlib.Path]:
    """Files of the project that a container has, by where it has them."""
    found = {}
    for volume in service["volumes"]:
        source, target, *_ = volume.split(":")
        if source.startswith("."):
            found[target] = (EXAMPLE / source).resolve()
    return found


def check(promtool: str, tessera: str | None) -> list[str]:
    services, configuration = load("compose.yaml")["services"], load("prometheus.yml")
    complaints = []
    for name, service in services.items():
        for target, path in mounts(service).items():
            if not path.is_file() and path not in NOT_THERE:
                complaints.append(f"{name}: {target} is mounted from {path}, which is not there")
        for port in service["ports"]:
            if not port.startswith("127.0.0.1:"):
                complaints.append(f"{name}: others reach port {port}")
    complaints += check_prometheus(services, configuration, promtool)
    complaints += check_grafana(services)
    if tessera:
        complaints += check_command(services["tessera"]["command"], tessera)
    return complaints


def check_prometheus(services: dict, configuration: dict, promtool: str) -> list[str]:
    complaints = []
    given = mounts(services["prometheus"])
    complaints += [
        f"prometheus has no {path}" for path in configuration["rule_files"] if path not in given
    ]
    (job,) = configuration["scrape_configs"]
    if job["job_name"] != "tessera":
        complaints.append(f"the job is called {job['job_name']}, and the rules ask for tessera")
    for target in job["static_configs"][0]["targets"]:
        if target.partition(":")[0] not in services:
            complaints.append(f"{target} is no service of compose.yaml")
    command = [promtool, "check", "config", "--syntax-only", str(EXAMPLE / "prometheus.yml")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if ran.returncode != 0:
        complaints.append(f"promtool check config: {ran.stdout}{ran.stderr}")
    return complaints


def check_grafana(services: dict) -> list[str]:
    complaints = []
    given = mounts(services["grafana"])
    folder = load("grafana-boards.yaml")["providers"][0]["options"]["path"]
    boards = [path for target, path in given.items() if target.startswith(f"{folder}/")]
    if boards != [BOARD]:
        complaints.append(f"{folder} has {boards}, expected the board alone")
    source = load("grafana-source.yaml")["datasources"][0]
    host = source["url"].removeprefix("http://").partition(":")[0]
    if source["type"] != "prometheus" or host not in services:
        complaints.append(f"the datasource is {source['type']} at {source['url']}")
    return complaints


def check_command(command: list[str], tessera: str) -> list[str]:
    """Whether the binary has these flags: it reads them all before it prints its help."""
    ran = subprocess.run([tessera, *command, "--help"], capture_output=True, text=True, timeout=60)
    return [] if ran.returncode == 0 else [f"tessera {' '.join(command)}: {ran.stderr}"]
