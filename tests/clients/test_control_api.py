"""The control plane against its own OpenAPI document, with schemathesis.

It has a server of its own: what schemathesis makes up includes requests that stop every task.
"""

import copy
import json
import shutil
import subprocess
import sys
import tempfile
import time
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


def with_names_that_there_are(document: dict) -> dict:
    """The document, where names are not any but mostly those of tasks and blocks that there are.

    Names that are made up are nearly always unknown, so that little happens.
    """

    def one_of(*values: str) -> dict:
        return {"type": "string", "enum": list(values)}

    schemas = document["components"]["schemas"]
    parameters = document["components"]["parameters"]
    models = ("fixed", "scores", "add_sub_int32", "exits")
    tasks = one_of("fixed", "scores", "exits", "one", "two")
    schemas["BlockName"] = one_of(*models, "exits/0", "exits/1", "exits/2", "scores/0")
    schemas["StepInput"] = one_of("$0", "$1", "a", "b", "a.0", "b.1", "exits", "exits/0.1")
    schemas["PathStep"]["properties"] |= {"name": one_of("a", "b", "c"), "device": one_of("cpu")}
    schemas["System"]["properties"]["tasks"]["propertyNames"] = tasks
    parameters["Task"]["schema"] = tasks
    parameters["Exit"]["schema"] = one_of("exit_stage2", "none")
    threshold = {"$ref": "#/components/schemas/Threshold"}
    for kind in ("TaskOfModel", "TaskOfSteps"):
        schemas[kind]["properties"] |= {
            "device": one_of("cpu"),
            "replicas": {"type": "integer", "minimum": 1, "maximum": 2},
            "exits": {
                "type": "object",
                "properties": {"exit_stage2": threshold},
                "additionalProperties": False,
            },
        }
    return document


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
        cls.document = call(cls.server.control, "GET", "/openapi.json")[2]

    def schemathesis(self, *options: str, document: dict | None = None, parameters: dict = {}):
        """Makes requests up, with these parameters of paths where they are given."""
        config = self.folder / "schemathesis.toml"
        path = self.folder / "openapi.json"
        path.write_text(json.dumps(document or self.document))
        lines = [f'{name} = "{value}"' for name, value in parameters.items()]
        config.write_text("\n".join(["[parameters]", *lines, ""]))
        command = [Path(sys.executable).parent / "schemathesis", "--config-file", config, "run"]
        command += [path, "--url", f"http://{self.server.control}"]
        command += ["--checks", CHECKS, "--phases", "examples,coverage,fuzzing", "--seed", "1"]
        command += ["--no-color", "--warnings", "off", "--generation-database", "none"]
        # Streams of events never end.
        command += ["--exclude-path", "/v1/events", "--exclude-path", "/v1/live"]
        command += ["--request-timeout", "20", *options]
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

    def put_back(self, system: dict):
        """Makes these the tasks again, for the next test."""
        deadline = time.monotonic() + 10
        while call(self.server.control, "PUT", "/v1/system", system)[0] != 200:
            self.assertLess(time.monotonic(), deadline, "the tasks do not come back")
            time.sleep(0.1)

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

    def test_1_tasks_go_and_come_back_at_once(self):
        every = call(self.server.control, "GET", "/v1/system")[2]
        only = {"tasks": {"fixed": {"model": "fixed"}}}
        self.addCleanup(self.put_back, every)
        for _ in range(60):
            for system in (only, every):
                status, _, told = call(self.server.control, "PUT", "/v1/system", system)
                self.assertEqual(status, 200, told)

    def test_2_what_is_there_answers_as_the_document_says(self):
        unit = next(
            unit["name"] for unit in self.server.told["units"] if "exits" in unit["tasks"]
        )
        keep = ("deleteTask", "putSystem", "postSystem")
        keep = [word for name in keep for word in ("--exclude-operation-id", name)]
        parameters = {"task": "exits", "exit": "exit_stage2", "unit": unit}
        self.schemathesis("--max-examples", "50", *keep, parameters=parameters)

    def test_3_a_device_that_is_not_there_is_named_wherever_units_run(self):
        for isolation in ("thread", "process"):
            with self.subTest(isolation):
                body = {"model": "fixed", "device": "cuda:7", "isolation": isolation}
                status, _, told = call(self.server.control, "PUT", "/v1/tasks/elsewhere", body)
                self.assertEqual(status, 501, told)
                self.assertIn("cuda:7", told["error"])

    def test_4_names_that_there_are_can_be_put_together_in_any_way(self):
        document = with_names_that_there_are(copy.deepcopy(self.document))
        self.schemathesis("--max-examples", "40", "--mode", "positive", document=document)

    def test_5_whatever_is_asked_is_answered_as_the_document_says(self):
        self.schemathesis("--max-examples", "100")


if __name__ == "__main__":
    unittest.main()
