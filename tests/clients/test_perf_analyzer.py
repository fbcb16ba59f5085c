"""perf_analyzer, the load generator of Triton, which uses Triton's clients in C++."""

import csv
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

from case import ClientTest

PROGRAM = os.environ.get("PERF_ANALYZER")
SECONDS = 60
# Short windows, that are stable enough whatever else runs on this machine.
WINDOWS = ("-p", "300", "-s", "900", "-r", "3")


@unittest.skipUnless(PROGRAM, "PERF_ANALYZER is not set: no perf_analyzer")
class PerfAnalyzer(ClientTest):
    def run_it(self, protocol: str, model: str, *options: str, levels: int = 1):
        """Runs it and says what it measured at each level of load."""
        address = {"http": self.server.http, "grpc": self.server.grpc}[protocol]
        with self.subTest(protocol=protocol, model=model, options=options):
            with tempfile.TemporaryDirectory() as folder:
                report = Path(folder) / "report.csv"
                command = [PROGRAM, "-m", model, "-u", address, "-i", protocol, "-f", report]
                ended = subprocess.run(
                    [*command, *options],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    cwd=folder,
                    timeout=SECONDS,
                    text=True,
                )
                said = ended.stdout[-3000:]
                self.assertEqual(ended.returncode, 0, said)
                self.assertNotIn("Failed", ended.stdout)
                with report.open() as file:
                    rows = list(csv.DictReader(file))
            self.assertEqual(len(rows), levels, said)
            for row in rows:
                self.assertGreater(float(row["Inferences/Second"]), 0, said)
            return rows

    def test_a_network_over_both_protocols(self):
        for protocol in ("http", "grpc"):
            self.run_it(protocol, "resnet", "--request-count", "8")
            self.run_it(protocol, "resnet", "--request-count", "4", "-b", "4")

    def test_a_range_of_concurrency(self):
        for protocol in ("http", "grpc"):
            options = ("--concurrency-range", "1:3:1", *WINDOWS)
            self.run_it(protocol, "add_sub_int32", *options, levels=3)

    def test_requests_that_do_not_wait(self):
        options = ("--concurrency-range", "4", "--request-count", "100")
        for protocol in ("http", "grpc"):
            self.run_it(protocol, "add_sub_int32", "--async", *options)
        self.run_it("grpc", "add_sub_int32", "--async", "--streaming", *options)

    def test_a_rate_of_requests(self):
        for protocol in ("http", "grpc"):
            options = ("--request-rate-range", "100", "--request-distribution", "poisson")
            (row,) = self.run_it(protocol, "add_sub_fp32", *options, *WINDOWS)
            self.assertLess(float(row["Inferences/Second"]), 200)

    def test_system_shared_memory_over_grpc(self):
        self.shared_memory("grpc")

    def test_system_shared_memory_over_http(self):
        self.shared_memory("http")

    def shared_memory(self, protocol: str):
        options = ("--shared-memory", "system")
        self.run_it(protocol, "resnet", "--request-count", "4", "-b", "4", *options)
        self.run_it(protocol, "mixed", "--request-count", "50", *options)
        self.run_it(protocol, "texts", "--request-count", "50", *options)

    def test_json_tensors(self):
        options = ("--input-tensor-format", "json", "--output-tensor-format", "json")
        self.run_it("http", "add_sub_fp32", "--request-count", "50", *options)
        self.run_it("http", "texts", "--request-count", "50", *options)

    def test_strings_open_dimensions_and_versions(self):
        self.run_it("http", "texts", "--request-count", "50", "--string-length", "40")
        self.run_it("grpc", "texts", "--request-count", "50", "-b", "4")
        self.run_it("http", "dynamic", "--request-count", "50", "--shape", "x:9", "-b", "3")
        self.run_it("grpc", "fixed", "--request-count", "50", "-x", "1")

    def test_compression_over_grpc(self):
        options = ("--grpc-compression-algorithm", "gzip")
        self.run_it("grpc", "resnet", "--request-count", "4", *options)

    def test_time_in_the_server_is_told(self):
        for protocol in ("http", "grpc"):
            (row,) = self.run_it(protocol, "resnet", "--request-count", "8")
            self.assertGreater(float(row["Server Compute Infer"]), 0)

    def test_a_model_that_is_not_there_is_named(self):
        for protocol in ("http", "grpc"):
            address = {"http": self.server.http, "grpc": self.server.grpc}[protocol]
            ended = subprocess.run(
                [PROGRAM, "-m", "nothing", "-u", address, "-i", protocol],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=SECONDS,
                text=True,
            )
            self.assertNotEqual(ended.returncode, 0)
            self.assertIn("nothing", ended.stdout + ended.stderr)


if __name__ == "__main__":
    unittest.main()
