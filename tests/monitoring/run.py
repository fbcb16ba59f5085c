"""Holds deploy/monitoring, examples/monitoring and docs/monitoring.md to a real server.

A Prometheus scrapes two servers under load, and is asked everything that the board and the rules
ask. Grafana is not there: that it takes the board is not seen here."""

import argparse
import pathlib
import subprocess
import sys
import tempfile
import time

import board
import breakages
import example
import guide
import live
import metrics_table
import rules
import source
from gpu_server import GpuServer
from metrics_page import Family, merge_pages, read_page
from prometheus import Prometheus
from scene import Scene

# After the last request, so that it is scraped.
SCRAPE_SECONDS = 2.5


class Report:
    """What was found."""

    def __init__(self):
        self.complaints = []

    def add(self, what: str, complaints: list[str]) -> None:
        print(f"{'FAILED' if complaints else 'ok':8}{what}", flush=True)
        for complaint in complaints:
            print(f"        {complaint}", flush=True)
        self.complaints += complaints


def check_files(report: Report, the_board: dict, the_rules: list[dict], promtool: str) -> None:
    """All that needs no server."""
    names, text = source.names_in_source(), guide.GUIDE.read_text()
    page = source.gpu_page()
    report.add("the board is whole, and as make_board.py writes it", board.check(the_board))
    report.add("the board asks for metrics that there are", board.check_metrics(the_board, names))
    report.add("alerts say what to do", rules.check(the_rules))
    report.add("rules ask for metrics that there are", rules.check_metrics(the_rules, names))
    report.add("alerts are tested", rules.check_tested(the_rules, rules.load_tests()))
    report.add("alerts fire and are silent as their tests say", rules.run_promtool(promtool))
    report.add("the guide has all rows and alerts", guide.check(text, the_board, the_rules))
    report.add("the guide has all metrics of the source", guide.check_names(text, names))
    report.add(
        "Prometheus takes the configurations of the guide",
        guide.check_configurations(text, promtool),
    )
    gpu_source = source.GPU_SOURCE.read_text()
    report.add("the page of GPUs is as the source says", source.check_gpu_page(page, gpu_source))
    noticed = breakages.check(the_board, the_rules, text, names)
    report.add("what is broken is noticed", noticed)


def play_scene(binary: str, prometheus_binary: str, report: Report, the_board, the_rules):
    """Asks everything of what has happened; the pages of all servers."""
    with tempfile.TemporaryDirectory(prefix="tessera-monitoring-") as folder:
        folder = pathlib.Path(folder)
        gpus = GpuServer(source.gpu_page())
        scene = Scene(binary, folder)
        prometheus = None
        try:
            scene.wait_until_ready()
            targets = [server.metrics for server in scene.servers()] + [gpus.address]
            prometheus = Prometheus(prometheus_binary, folder / "prometheus", targets)
            prometheus.wait_until_ready()
            scene.play()
            time.sleep(SCRAPE_SECONDS)
            ask_everything(prometheus, scene, report, the_board, the_rules)
            pages = [read_page(server.page()) for server in scene.servers()]
        finally:
            if prometheus:
                prometheus.stop()
            scene.stop()
            gpus.stop()
    return merge_pages([*pages, source.gpu_page()])


def ask_everything(prometheus, scene, report, the_board, the_rules) -> None:
    asked, complaints = live.check_board(prometheus, the_board)
    report.add(f"all {asked} queries of the board have an answer", complaints)
    report.add("all variables have values", live.check_variables(prometheus, the_board))
    chosen = {
        "host": scene.apart.metrics,
        "task": "cats",
        "unit": scene.apart.units()[0]["name"],
    }
    narrowed = live.check_one_choice(prometheus, the_board, chosen)
    narrowed += live.check_each_choice(prometheus, the_board)
    report.add("what is chosen is shown, and alone", narrowed)
    asked, complaints = live.check_rules(prometheus, the_rules)
    report.add(f"all {asked} selectors of rules have series, and alerts fire", complaints)


def check_live(report: Report, arguments, the_board: dict, the_rules: list[dict]) -> None:
    """All that needs servers."""
    try:
        families = play_scene(arguments.tessera, arguments.prometheus, report, the_board, the_rules)
    except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
        report.add("servers and Prometheus run, and are asked", [str(error)])
        return
    if arguments.write_tables:
        text = guide.GUIDE.read_text()
        tables = metrics_table.write_tables(families)
        guide.GUIDE.write_text(metrics_table.replace_tables(text, tables))
    check_names(report, families)


def check_names(report: Report, families: dict[str, Family]) -> None:
    complaints = source.check_names(set(families), source.names_in_source())
    report.add("servers tell what the source has", complaints)
    tables = guide.check_tables(guide.GUIDE.read_text(), families)
    report.add(f"the guide's tables have all {len(families)} metrics", tables)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prometheus", required=True)
    parser.add_argument("--promtool", required=True)
    parser.add_argument("--tessera")
    parser.add_argument("--write-tables", action="store_true")
    arguments = parser.parse_args()
    began = time.monotonic()
    report, the_board, the_rules = Report(), board.load(), rules.load()
    check_files(report, the_board, the_rules, arguments.promtool)
    report.add("the example is whole", example.check(arguments.promtool, arguments.tessera))
    if arguments.tessera:
        check_live(report, arguments, the_board, the_rules)
    not_seen = sorted(filter(source.is_not_seen, source.names_in_source()))
    print(f"not seen on a server here, and held to the source instead: {', '.join(not_seen)}")
    for beginning, why in source.NOT_SEEN_HERE.items():
        print(f"        {beginning}…: {why}")
    failed = f"{len(report.complaints)} complaints" if report.complaints else "all is well"
    print(f"{failed}; {time.monotonic() - began:.1f} s")
    return 1 if report.complaints else 0


if __name__ == "__main__":
    sys.exit(main())
