"""Triton's clients where every unit runs in a process of its own."""

import shutil
import tempfile
import unittest
from pathlib import Path

import models
import numpy
import server
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
import tritonclient.utils.shared_memory as shm

KEY = "/tessera-clients-processes"


class Processes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        server.stop_shared()
        cls.folder = Path(tempfile.mkdtemp(prefix="tessera-clients-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.files = {
            "add_sub_int32": models.add_sub(cls.folder, "INT32"),
            "fixed": models.fixed(cls.folder),
            "texts": models.texts(cls.folder),
            "resnet": server.zoo(
                cls.folder, "resnet18", "--batch", "dynamic", output="resnet"
            ),
        }
        cls.server = server.Server(cls.folder, list(cls.files.values()), "--isolation", "process")
        cls.addClassCleanup(cls.server.stop)

    def setUp(self):
        self.http = triton_http.InferenceServerClient(self.server.http)
        self.addCleanup(self.http.close)
        self.grpc = triton_grpc.InferenceServerClient(self.server.grpc)
        self.addCleanup(self.grpc.close)

    def both(self, model: str, datatypes: dict[str, str], **arrays):
        """What the model answers over HTTP and over gRPC, to compare with ONNX Runtime."""
        for module, client in ((triton_http, self.http), (triton_grpc, self.grpc)):
            inputs = []
            for name, array in arrays.items():
                inputs.append(module.InferInput(name, list(array.shape), datatypes[name]))
                inputs[-1].set_data_from_numpy(array)
            yield client.infer(model, inputs)

    def test_every_unit_is_in_a_process(self):
        for unit in self.server.told["units"]:
            for instance in unit["instances"]:
                self.assertIsNotNone(instance["process"])

    def test_tensors_go_in_and_out(self):
        arrays = dict(zip(("INPUT0", "INPUT1"), models.examples("INT32", rows=3)))
        expected = models.expected(self.files["add_sub_int32"], arrays)
        datatypes = {"INPUT0": "INT32", "INPUT1": "INT32"}
        for result in self.both("add_sub_int32", datatypes, **arrays):
            for name, array in expected.items():
                numpy.testing.assert_array_equal(result.as_numpy(name), array)

    def test_strings_go_in_and_out(self):
        strings = numpy.array([[b"a", b"", "Grüße".encode(), b"x" * 5000]], object)
        for result in self.both("texts", {"INPUT0": "BYTES"}, INPUT0=strings):
            numpy.testing.assert_array_equal(result.as_numpy("OUTPUT0"), strings)

    def test_a_network_answers_as_onnxruntime_does(self):
        images = numpy.random.default_rng(1).standard_normal((2, 3, 224, 224), numpy.float32)
        expected = models.expected(self.files["resnet"], {"input": images})["output"]
        for result in self.both("resnet", {"input": "FP32"}, input=images):
            got = result.as_numpy("output")
            numpy.testing.assert_allclose(got, expected, atol=1e-4 * numpy.abs(expected).max())

    def test_tensors_stay_in_shared_memory(self):
        arrays = models.examples("INT32")
        handle = shm.create_shared_memory_region("both", KEY, 128)
        self.addCleanup(shm.destroy_shared_memory_region, handle)
        self.grpc.register_system_shared_memory("both", KEY, 128)
        self.addCleanup(self.http.unregister_system_shared_memory)
        inputs = [triton_grpc.InferInput(f"INPUT{n}", [1, 16], "INT32") for n in range(2)]
        output = triton_grpc.InferRequestedOutput("OUTPUT0")
        for number, tensor in enumerate(inputs):
            tensor.set_shared_memory("both", 64, offset=64 * number)
        output.set_shared_memory("both", 64)
        shm.set_shared_memory_region(handle, arrays)
        self.grpc.infer("add_sub_int32", inputs, outputs=[output])
        got = shm.get_contents_as_numpy(handle, numpy.int32, [1, 16])
        numpy.testing.assert_array_equal(got, arrays[0] + arrays[1])

    def test_a_model_is_unloaded_and_loaded_again_and_again(self):
        for _ in range(5):
            self.http.unload_model("fixed")
            self.assertFalse(self.http.is_model_ready("fixed"))
            self.http.load_model("fixed")
            self.assertTrue(self.http.is_model_ready("fixed"))


if __name__ == "__main__":
    unittest.main()
