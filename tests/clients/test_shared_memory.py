"""Tensors that stay in system shared memory, over HTTP and over gRPC."""

import itertools
import unittest

import models
import numpy
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
import tritonclient.utils.shared_memory as shm
from case import ClientTest
from tritonclient.utils import InferenceServerException, serialize_byte_tensor

numbers = itertools.count()


class SharedMemoryTests:
    """The same for both protocols; `triton` and `address` say which."""

    def setUp(self):
        self.client = self.triton.InferenceServerClient(self.address())
        self.client.unregister_system_shared_memory()
        self.client.unregister_cuda_shared_memory()
        self.addCleanup(self.client.close)
        self.addCleanup(self.client.unregister_system_shared_memory)

    def region(self, size: int):
        """A region of shared memory, registered: its name and its handle."""
        number = next(numbers)
        name, key = f"region{number}", f"/tessera-clients-{number}"
        handle = shm.create_shared_memory_region(name, key, size)
        self.addCleanup(shm.destroy_shared_memory_region, handle)
        self.client.register_system_shared_memory(name, key, size)
        return name, handle

    def shared_input(self, name, datatype, shape, region, size, offset=0):
        made = self.triton.InferInput(name, shape, datatype)
        made.set_shared_memory(region, size, offset=offset)
        return made

    def status(self):
        told = self.client.get_system_shared_memory_status()
        if isinstance(told, list):
            return {region["name"]: region["byte_size"] for region in told}
        return {region.name: region.byte_size for region in told.regions.values()}

    def test_inputs_and_outputs_stay_in_shared_memory(self):
        for datatype in ("INT32", "FP32", "FP16", "BOOL", "UINT8", "INT64"):
            with self.subTest(datatype):
                arrays = models.examples(datatype, rows=2)
                size = arrays[0].nbytes
                in_name, in_handle = self.region(2 * size)
                out_name, out_handle = self.region(2 * size)
                shm.set_shared_memory_region(in_handle, arrays)
                inputs = [
                    self.shared_input(f"INPUT{n}", datatype, [2, 16], in_name, size, n * size)
                    for n in range(2)
                ]
                outputs = [self.triton.InferRequestedOutput(f"OUTPUT{n}") for n in range(2)]
                for number, output in enumerate(outputs):
                    output.set_shared_memory(out_name, size, offset=number * size)
                model = models.add_sub_name(datatype)
                result = self.client.infer(model, inputs, outputs=outputs)
                expected = models.expected(
                    self.shared.files[model], {"INPUT0": arrays[0], "INPUT1": arrays[1]}
                )
                for number, array in enumerate(expected.values()):
                    self.assertIsNotNone(result.get_output(f"OUTPUT{number}"))
                    got = shm.get_contents_as_numpy(
                        out_handle, array.dtype, [2, 16], offset=number * size
                    )
                    self.assert_same(got, array)

    def test_one_tensor_may_be_shared_and_another_sent(self):
        arrays = models.examples("INT32")
        size = arrays[0].nbytes
        name, handle = self.region(size)
        out_name, out_handle = self.region(size)
        shm.set_shared_memory_region(handle, [arrays[1]])
        sent = self.triton.InferInput("INPUT0", [1, 16], "INT32")
        sent.set_data_from_numpy(arrays[0])
        inputs = [sent, self.shared_input("INPUT1", "INT32", [1, 16], name, size)]
        outputs = [self.triton.InferRequestedOutput(f"OUTPUT{n}") for n in range(2)]
        outputs[0].set_shared_memory(out_name, size)
        result = self.client.infer("add_sub_int32", inputs, outputs=outputs)
        got = shm.get_contents_as_numpy(out_handle, numpy.int32, [1, 16])
        self.assert_same(got, arrays[0] + arrays[1])
        self.assert_same(result.as_numpy("OUTPUT1"), arrays[0] - arrays[1])

    def test_strings_go_through_shared_memory(self):
        strings = numpy.array([[b"a", b"", "Grüße".encode(), b"x" * 100]], object)
        serialized = serialize_byte_tensor(strings)
        size = len(serialized.item())
        name, handle = self.region(size)
        out_name, out_handle = self.region(size + 64)
        shm.set_shared_memory_region(handle, [serialized])
        inputs = [self.shared_input("INPUT0", "BYTES", [1, 4], name, size)]
        output = self.triton.InferRequestedOutput("OUTPUT0")
        output.set_shared_memory(out_name, size + 64)
        self.client.infer("texts", inputs, outputs=[output])
        got = shm.get_contents_as_numpy(out_handle, numpy.object_, [1, 4])
        self.assert_same(got, strings)

    def test_a_network_answers_through_shared_memory(self):
        images = numpy.random.default_rng(3).standard_normal((2, 3, 224, 224), numpy.float32)
        expected = models.expected(self.shared.files["resnet"], {"input": images})["output"]
        name, handle = self.region(images.nbytes)
        out_name, out_handle = self.region(expected.nbytes)
        shm.set_shared_memory_region(handle, [images])
        inputs = [self.shared_input("input", "FP32", list(images.shape), name, images.nbytes)]
        output = self.triton.InferRequestedOutput("output")
        output.set_shared_memory(out_name, expected.nbytes)
        self.client.infer("resnet", inputs, outputs=[output])
        got = shm.get_contents_as_numpy(out_handle, numpy.float32, [2, 1000])
        self.assert_same(got, expected, tolerance=1e-4)

    def test_regions_are_listed_and_forgotten(self):
        name, _ = self.region(64)
        other, _ = self.region(128)
        self.assertEqual(self.status(), {name: 64, other: 128})
        with self.assertRaises(InferenceServerException) as refused:
            self.client.register_system_shared_memory(name, "/tessera-clients-0", 64)
        self.assert_message(refused.exception, name, "already")
        self.client.unregister_system_shared_memory(name)
        self.assertEqual(self.status(), {other: 128})
        self.client.unregister_system_shared_memory()
        self.assertEqual(self.status(), {})

    def test_what_is_wrong_with_a_region_is_named(self):
        name, _ = self.region(64)
        with self.assertRaises(InferenceServerException) as refused:
            self.client.register_system_shared_memory("gone", "/tessera-clients-gone", 64)
        self.assert_message(refused.exception, "gone")
        for region, size, offset in (("unknown", 64, 0), (name, 64, 4), (name, 60, 0)):
            with self.subTest(region=region, size=size, offset=offset):
                inputs = [
                    self.shared_input(f"INPUT{n}", "INT32", [1, 16], region, size, offset)
                    for n in range(2)
                ]
                with self.assertRaises(InferenceServerException) as refused:
                    self.client.infer("add_sub_int32", inputs)
                self.assert_message(refused.exception, "INPUT0")

    def test_an_output_that_does_not_fit_is_refused(self):
        arrays = models.examples("INT32")
        name, _ = self.region(60)
        inputs = []
        for number, array in enumerate(arrays):
            inputs.append(self.triton.InferInput(f"INPUT{number}", [1, 16], "INT32"))
            inputs[-1].set_data_from_numpy(array)
        output = self.triton.InferRequestedOutput("OUTPUT0")
        output.set_shared_memory(name, 60)
        with self.assertRaises(InferenceServerException) as refused:
            self.client.infer("add_sub_int32", inputs, outputs=[output])
        self.assert_message(refused.exception, "OUTPUT0", "60", "64")


class SharedMemoryOverHttp(SharedMemoryTests, ClientTest):
    triton = triton_http

    def address(self):
        return self.server.http

    def test_an_output_in_shared_memory_has_no_parameters(self):
        """Triton's C++ client fails on parameters of an output without binary_data_size."""
        name, _ = self.region(64)
        inputs = [
            self.shared_input(f"INPUT{n}", "INT32", [1, 16], name, 64, 0) for n in range(2)
        ]
        output = self.triton.InferRequestedOutput("OUTPUT0")
        output.set_shared_memory(name, 64)
        told = self.client.infer("add_sub_int32", inputs, outputs=[output]).get_output("OUTPUT0")
        self.assertNotIn("data", told)
        self.assertIn("binary_data_size", told.get("parameters", {"binary_data_size": 0}))


class SharedMemoryOverGrpc(SharedMemoryTests, ClientTest):
    triton = triton_grpc

    def address(self):
        return self.server.grpc


if __name__ == "__main__":
    unittest.main()
