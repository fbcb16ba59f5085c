"""The control plane against its own OpenAPI document, with schemathesis.

It has a server of its own: what schemathesis makes up includes requests that stop every task.
"""

import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import models
import numpy
import server
import tritonclient.http as triton
from case import call

CHECKS = ",".join(
    (
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_headers_conformance",
        "response_schema_conformance",
    )
)
SECONDS = 90


class ControlApi(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        server.stop_shared()
        cls.folder = Path(tempfile.mkdtemp(prefix="tessera-clients-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        files = [
            models.fixed(cls.folder),
            models.scores(cls.folder),
            models.add_sub(cls.folder, "INT32"),
            server.zoo(cls.folder, "resnet18", "--exits", output="exits"),
        ]
        cls.server = server.Server(cls.folder, files)
        cls.addClassCleanup(cls.server.stop)

    def schemathesis(self, *options: str, parameters: dict[str, str] | None = None):
        """Makes requests up, with these parameters of paths where they are given."""
        config = self.folder / "schemathesis.toml"
        lines = [f'{name} = "{value}"' for name, value in (parameters or {}).items()]
        config.write_text("\n".join(["[parameters]", *lines, ""]))
        command = [Path(sys.executable).parent / "schemathesis", "--config-file", config, "run"]
        command += [server.ROOT / "docs" / "openapi.json", "--url", f"http://{self.server.control}"]
        command += ["--checks", CHECKS, "--phases", "examples,coverage,fuzzing", "--seed", "1"]
        command += ["--no-color", "--warnings", "off", "--generation-database", "none"]
        # A stream of events never ends.
        command += ["--exclude-path", "/v1/events", "--request-timeout", "20", *options]
        ended = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self.folder,
            timeout=SECONDS,
            text=True,
        )
        self.assertEqual(ended.returncode, 0, ended.stdout[-6000:])
        self.assertRegex(ended.stdout, r"Test cases:\s+\d{3,} generated")
        self.assertIsNone(self.server.process.poll(), "the server has ended")

    # Tests run in the order of their names: the last one leaves nothing to test.

    def test_1_a_task_is_added_used_and_removed(self):
        def control(method: str, path: str, body=None):
            status, _, told = call(self.server.control, method, path, body)
            self.assertEqual(status, 200, told)
            return told

        x = numpy.array([[1, -2, 3], [-4, 5, -6]], numpy.float32)
        tensor = triton.InferInput("x", [2, 3], "FP32")
        tensor.set_data_from_numpy(x)
        with triton.InferenceServerClient(self.server.http) as client:
            changed = control("PUT", "/v1/tasks/again", {"model": "fixed"})
            self.assertIn("again", changed["tasks"])
            self.assertTrue(client.is_model_ready("again"))
            result = client.infer("again", [tensor])
            numpy.testing.assert_array_equal(result.as_numpy("y"), numpy.abs(x))
            changed = control("DELETE", "/v1/tasks/again")
            self.assertNotIn("again", changed["tasks"])
            self.assertFalse(client.is_model_ready("again"))

    def test_2_what_is_there_answers_as_the_document_says(self):
        block = next(
            block["name"] for block in self.server.told["blocks"] if "exits" in block["tasks"]
        )
        keep = ("deleteTask", "putSystem", "postSystem")
        keep = [word for name in keep for word in ("--exclude-operation-id", name)]
        parameters = {"task": "exits", "exit": "exit_stage2", "block": block}
        self.schemathesis("--max-examples", "50", *keep, parameters=parameters)

    def test_3_whatever_is_asked_is_answered_as_the_document_says(self):
        self.schemathesis("--max-examples", "100")


if __name__ == "__main__":
    unittest.main()
