"""tritonclient.http, waiting and not."""

import asyncio
import unittest

import models
import numpy
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from case import ClientTest
from tritonclient.utils import InferenceServerException


def make_input(name: str, datatype: str, array: numpy.ndarray, binary: bool = True, module=triton):
    made = module.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array, binary_data=binary)
    return made


def add_sub_inputs(datatype: str, arrays, binary: bool = True):
    return [
        make_input(f"INPUT{index}", datatype, array, binary) for index, array in enumerate(arrays)
    ]


class TritonHttp(ClientTest):
    def setUp(self):
        self.client = triton.InferenceServerClient(self.server.http, concurrency=4)
        self.addCleanup(self.client.close)

    def expected(self, model: str, **inputs):
        return models.expected(self.shared.files[model], inputs)

    def test_server_and_models_are_live_and_ready(self):
        self.assertTrue(self.client.is_server_live())
        self.assertTrue(self.client.is_server_ready())
        for model in self.shared.files:
            self.assertTrue(self.client.is_model_ready(model), model)
        self.assertTrue(self.client.is_model_ready("fixed", "1"))
        self.assertFalse(self.client.is_model_ready("nothing"))
        self.assertFalse(self.client.is_model_ready("fixed", "7"))

    def test_the_server_tells_its_extensions(self):
        metadata = self.client.get_server_metadata()
        self.assertEqual(metadata["name"], "tessera")
        self.assertTrue(metadata["version"])
        for extension in ("binary_tensor_data", "system_shared_memory", "classification"):
            self.assertIn(extension, metadata["extensions"])

    def test_metadata_has_names_dtypes_and_shapes(self):
        for version in ("", "1"):
            metadata = self.client.get_model_metadata("mixed", version)
            self.assertEqual(metadata["name"], "mixed")
            self.assertEqual(metadata["versions"], ["1"])
            self.assertEqual(
                metadata["inputs"],
                [
                    {"name": "values", "datatype": "FP32", "shape": [2, 4]},
                    {"name": "ids", "datatype": "INT64", "shape": [4]},
                ],
            )
            self.assertEqual(
                metadata["outputs"],
                [
                    {"name": "sum", "datatype": "FP32", "shape": [2, 4]},
                    {"name": "total", "datatype": "INT64", "shape": []},
                ],
            )
        for datatype in models.ADD_SUB:
            metadata = self.client.get_model_metadata(models.add_sub_name(datatype))
            tensors = metadata["inputs"] + metadata["outputs"]
            self.assertEqual({tensor["datatype"] for tensor in tensors}, {datatype})
            self.assertEqual([tensor["shape"] for tensor in tensors], [[-1, 16]] * 4)

    def test_configuration_leaves_out_the_batch(self):
        config = self.client.get_model_config("add_sub_int32")
        self.assertEqual(config["name"], "add_sub_int32")
        self.assertGreater(config["max_batch_size"], 0)
        self.assertEqual(config["input"][0]["dims"], [16])
        self.assertEqual(config["input"][0]["data_type"], "TYPE_INT32")
        config = self.client.get_model_config("fixed", "1")
        self.assertEqual(config["max_batch_size"], 0)
        self.assertEqual(config["output"][0]["dims"], [2, 3])

    def test_statistics_count_what_was_asked(self):
        def statistics():
            (of_model,) = self.client.get_inference_statistics("add_sub_int16")["model_stats"]
            return of_model

        before = statistics()
        arrays = models.examples("INT16", rows=3)
        self.client.infer("add_sub_int16", add_sub_inputs("INT16", arrays))
        after = statistics()
        self.assertEqual(after["inference_count"] - before["inference_count"], 3)
        self.assertEqual(after["execution_count"] - before["execution_count"], 1)
        self.assertGreater(after["last_inference"], 1_600_000_000_000)
        for name, more in (("success", 1), ("queue", 1), ("compute_infer", 1), ("fail", 0)):
            spent = [told["inference_stats"][name] for told in (before, after)]
            self.assertEqual(spent[1]["count"] - spent[0]["count"], more, name)
        self.assertGreater(after["inference_stats"]["success"]["ns"], 0)
        everything = self.client.get_inference_statistics()["model_stats"]
        self.assertEqual({told["name"] for told in everything}, set(self.shared.files))

    def test_every_dtype_goes_in_and_out_as_bytes(self):
        for datatype in models.ADD_SUB:
            with self.subTest(datatype):
                arrays = models.examples(datatype, rows=2)
                model = models.add_sub_name(datatype)
                result = self.client.infer(model, add_sub_inputs(datatype, arrays))
                expected = self.expected(model, INPUT0=arrays[0], INPUT1=arrays[1])
                for name, array in expected.items():
                    self.assert_same(result.as_numpy(name), array)

    def test_every_dtype_but_fp16_goes_in_and_out_as_json(self):
        for datatype in models.ADD_SUB:
            if datatype == "FP16":
                continue  # The client itself refuses.
            with self.subTest(datatype):
                arrays = models.examples(datatype, rows=2)
                model = models.add_sub_name(datatype)
                wanted = [
                    triton.InferRequestedOutput(name, binary_data=False)
                    for name in ("OUTPUT0", "OUTPUT1")
                ]
                inputs = add_sub_inputs(datatype, arrays, binary=False)
                result = self.client.infer(model, inputs, outputs=wanted)
                expected = self.expected(model, INPUT0=arrays[0], INPUT1=arrays[1])
                for name, array in expected.items():
                    self.assertNotIn("parameters", result.get_output(name))
                    self.assert_same(result.as_numpy(name), array)

    def test_inputs_and_outputs_may_differ_in_their_form(self):
        arrays = models.examples("INT32")
        inputs = [
            make_input("INPUT0", "INT32", arrays[0], binary=False),
            make_input("INPUT1", "INT32", arrays[1], binary=True),
        ]
        wanted = [
            triton.InferRequestedOutput("OUTPUT1", binary_data=True),
            triton.InferRequestedOutput("OUTPUT0", binary_data=False),
        ]
        result = self.client.infer("add_sub_int32", inputs, outputs=wanted, request_id="mine")
        response = result.get_response()
        self.assertEqual([output["name"] for output in response["outputs"]], ["OUTPUT1", "OUTPUT0"])
        self.assertEqual(response["id"], "mine")
        self.assertEqual(response["model_name"], "add_sub_int32")
        self.assertEqual(response["model_version"], "1")
        self.assert_same(result.as_numpy("OUTPUT0"), arrays[0] + arrays[1])
        self.assert_same(result.as_numpy("OUTPUT1"), arrays[0] - arrays[1])

    def test_only_the_outputs_that_are_wanted_come_back(self):
        arrays = models.examples("INT32")
        wanted = [triton.InferRequestedOutput("OUTPUT1")]
        result = self.client.infer("add_sub_int32", add_sub_inputs("INT32", arrays), outputs=wanted)
        self.assertIsNone(result.as_numpy("OUTPUT0"))
        self.assert_same(result.as_numpy("OUTPUT1"), arrays[0] - arrays[1])

    def test_dtypes_and_ranks_may_be_mixed(self):
        values = numpy.arange(8, dtype=numpy.float32).reshape(2, 4)
        ids = numpy.array([1, 2, 3, 2**40], dtype=numpy.int64)
        expected = self.expected("mixed", values=values, ids=ids)
        for binary in (True, False):
            # In another order than that of the model.
            inputs = [
                make_input("ids", "INT64", ids, binary),
                make_input("values", "FP32", values, binary),
            ]
            wanted = [
                triton.InferRequestedOutput(name, binary_data=binary) for name in ("sum", "total")
            ]
            result = self.client.infer("mixed", inputs, outputs=wanted)
            self.assert_same(result.as_numpy("sum"), expected["sum"])
            self.assert_same(result.as_numpy("total"), expected["total"])

    def test_strings_go_in_and_out_in_both_forms(self):
        strings = numpy.array([["", "a", "Grüße", "日本"], ["\\\"\n", "x" * 5000, " ", "0"]], object)
        for binary in (True, False):
            inputs = [make_input("INPUT0", "BYTES", strings, binary)]
            wanted = [triton.InferRequestedOutput("OUTPUT0", binary_data=binary)]
            got = self.client.infer("texts", inputs, outputs=wanted).as_numpy("OUTPUT0")
            self.assertEqual(got.shape, (2, 4))
            got = [text.decode() if isinstance(text, bytes) else text for text in got.flat]
            self.assertEqual(got, list(strings.flat))

    def test_open_dimensions_take_any_size(self):
        for shape in ((1, 1), (3, 7), (16, 1), (1, 1000)):
            x = numpy.linspace(-1, 1, shape[0] * shape[1], dtype=numpy.float32).reshape(shape)
            result = self.client.infer("dynamic", [make_input("x", "FP32", x)])
            self.assert_same(result.as_numpy("y"), self.expected("dynamic", x=x)["y"])

    def test_numbers_that_json_has_no_words_for_go_in(self):
        # The client writes NaN and Infinity, as Triton reads and writes them.
        x = numpy.array([[numpy.nan, numpy.inf, -numpy.inf, 1, 0]], numpy.float32)
        result = self.client.infer("scores", [make_input("x", "FP32", x, binary=False)])
        self.assert_same(result.as_numpy("y"), x)

    def test_numbers_that_json_has_no_words_for_come_out(self):
        for value in (numpy.nan, numpy.inf, -numpy.inf):
            with self.subTest(value):
                x = numpy.array([[value, 1, 2, 3, 4]], numpy.float32)
                wanted = [triton.InferRequestedOutput("y", binary_data=False)]
                result = self.client.infer("scores", [make_input("x", "FP32", x)], outputs=wanted)
                self.assert_same(result.as_numpy("y"), x)

    def test_a_tensor_of_many_megabytes_goes_in_and_out(self):
        x = numpy.random.default_rng(4).standard_normal((1, 4_000_000), numpy.float32)
        result = self.client.infer("dynamic", [make_input("x", "FP32", x)])
        self.assert_same(result.as_numpy("y"), -numpy.maximum(x, 0))

    def test_a_body_may_be_the_bytes_of_the_one_input(self):
        x = numpy.array([[1, -2, 3], [-4, 5, -6]], numpy.float32)
        response = self.client._post(
            "v2/models/fixed/infer", x.tobytes(), {"Inference-Header-Content-Length": "0"}, None
        )
        self.assertEqual(response.status_code, 200)
        told = response.get("Inference-Header-Content-Length")
        result = triton.InferenceServerClient.parse_response_body(
            response.read(), header_length=int(told)
        )
        self.assert_same(result.as_numpy("y"), numpy.abs(x))

    def test_a_network_answers_as_onnxruntime_does(self):
        images = numpy.random.default_rng(1).standard_normal((3, 3, 224, 224), numpy.float32)
        expected = self.expected("resnet", input=images)["output"]
        result = self.client.infer("resnet", [make_input("input", "FP32", images)])
        self.assert_same(result.as_numpy("output"), expected, tolerance=1e-4)
        alone = self.client.infer("resnet", [make_input("input", "FP32", images[:1])])
        self.assert_same(alone.as_numpy("output"), expected[:1], tolerance=1e-4)

    def test_an_answer_names_the_exit_that_it_took(self):
        image = numpy.random.default_rng(1).standard_normal((1, 3, 224, 224), numpy.float32)
        whole = self.expected("exits", input=image)
        result = self.client.infer("exits", [make_input("input", "FP32", image)])
        left_at = result.get_response().get("parameters", {}).get("exit")
        self.assertIn(left_at, (None, "exit_stage2"))
        self.assert_same(result.as_numpy("output"), whole[left_at or "output"], tolerance=1e-4)

    def test_compression_goes_both_ways(self):
        arrays = [numpy.ones((4, 16), numpy.int32), numpy.full((4, 16), 2, numpy.int32)]
        for algorithm in ("gzip", "deflate"):
            for binary in (True, False):
                with self.subTest(algorithm=algorithm, binary=binary):
                    wanted = [triton.InferRequestedOutput("OUTPUT0", binary_data=binary)]
                    result = self.client.infer(
                        "add_sub_int32",
                        add_sub_inputs("INT32", arrays, binary),
                        outputs=wanted,
                        request_compression_algorithm=algorithm,
                        response_compression_algorithm=algorithm,
                    )
                    self.assert_same(result.as_numpy("OUTPUT0"), arrays[0] + arrays[1])

    def test_a_compressed_network_input_is_read(self):
        image = numpy.random.default_rng(2).standard_normal((1, 3, 224, 224), numpy.float32)
        result = self.client.infer(
            "resnet",
            [make_input("input", "FP32", image)],
            request_compression_algorithm="gzip",
            response_compression_algorithm="deflate",
        )
        expected = self.expected("resnet", input=image)["output"]
        self.assert_same(result.as_numpy("output"), expected, tolerance=1e-4)

    def test_classification_gives_the_highest_scores_of_each_row(self):
        x = numpy.array([[0.1, 0.9, 0.3, 0.2, 0.5], [5, 4, 3, 2, 1]], numpy.float32)
        for binary in (True, False):
            wanted = [triton.InferRequestedOutput("y", binary_data=binary, class_count=3)]
            inputs = [make_input("x", "FP32", x)]
            got = self.client.infer("scores", inputs, outputs=wanted).as_numpy("y")
            self.assertEqual(got.shape, (2, 3))
            parts = [
                (text.decode() if isinstance(text, bytes) else text).split(":")
                for text in got.flat
            ]
            self.assertEqual([part[1] for part in parts], ["1", "4", "2", "0", "1", "2"])
            scores = [float(part[0]) for part in parts]
            numpy.testing.assert_allclose(scores, [0.9, 0.5, 0.3, 5, 4, 3], rtol=1e-5)

    def test_there_are_no_more_classes_than_scores(self):
        x = numpy.array([[1, 5, 3, 2, 4]], numpy.float32)
        wanted = [triton.InferRequestedOutput("y", class_count=1000)]
        got = self.client.infer("scores", [make_input("x", "FP32", x)], outputs=wanted)
        got = [text.decode().split(":")[1] for text in got.as_numpy("y").flat]
        self.assertEqual(got, ["1", "4", "2", "3", "0"])

    def test_classification_of_a_model_without_a_batch(self):
        values = numpy.arange(8, dtype=numpy.float32).reshape(2, 4)
        ids = numpy.zeros(4, numpy.int64)
        inputs = [make_input("values", "FP32", values), make_input("ids", "INT64", ids)]
        wanted = [triton.InferRequestedOutput("sum", class_count=2)]
        got = self.client.infer("mixed", inputs, outputs=wanted).as_numpy("sum")
        # Triton takes a model without a batch as one row.
        self.assertEqual([text.decode().split(":")[1] for text in got.flat], ["7", "6"])

    def test_requests_that_do_not_wait_are_answered(self):
        pending = []
        for seed in range(20):
            arrays = models.examples("FP32", rows=1 + seed % 3, seed=seed)
            inputs = add_sub_inputs("FP32", arrays)
            asked = self.client.async_infer("add_sub_fp32", inputs, request_id=str(seed))
            pending.append((str(seed), arrays, asked))
        for request_id, arrays, asked in pending:
            result = asked.get_result(timeout=30)
            self.assertEqual(result.get_response()["id"], request_id)
            self.assert_same(result.as_numpy("OUTPUT0"), arrays[0] + arrays[1])

    def test_a_request_may_have_a_timeout_a_priority_and_parameters_of_its_own(self):
        arrays = models.examples("INT32")
        result = self.client.infer(
            "add_sub_int32",
            add_sub_inputs("INT32", arrays),
            model_version="1",
            timeout=10_000_000,
            priority=1,
            parameters={"mine": "yes", "number": 3, "flag": True},
        )
        self.assert_same(result.as_numpy("OUTPUT0"), arrays[0] + arrays[1])

    def test_a_body_can_be_made_and_read_by_hand(self):
        arrays = models.examples("INT32")
        body, length = triton.InferenceServerClient.generate_request_body(
            add_sub_inputs("INT32", arrays)
        )
        response = self.client._post(
            "v2/models/add_sub_int32/infer",
            body,
            {"Inference-Header-Content-Length": str(length)},
            None,
        )
        self.assertEqual(response.status_code, 200)
        told = response.get("Inference-Header-Content-Length")
        result = triton.InferenceServerClient.parse_response_body(
            response.read(), header_length=int(told)
        )
        self.assert_same(result.as_numpy("OUTPUT0"), arrays[0] + arrays[1])

    def test_models_are_indexed_unloaded_and_loaded(self):
        index = self.client.get_model_repository_index()
        ready = {entry["name"] for entry in index if entry["state"] == "READY"}
        self.assertEqual(ready, set(self.shared.files))
        arrays = models.examples("UINT16")
        inputs = add_sub_inputs("UINT16", arrays)
        self.client.unload_model("add_sub_uint16")
        try:
            self.assertFalse(self.client.is_model_ready("add_sub_uint16"))
            with self.assertRaises(InferenceServerException) as refused:
                self.client.infer("add_sub_uint16", inputs)
            self.assert_message(refused.exception, "add_sub_uint16")
            entries = self.client.get_model_repository_index()
            (entry,) = [entry for entry in entries if entry["name"] == "add_sub_uint16"]
            self.assertEqual(entry["state"], "UNAVAILABLE")
        finally:
            self.client.load_model("add_sub_uint16")
        self.assertTrue(self.client.is_model_ready("add_sub_uint16"))
        result = self.client.infer("add_sub_uint16", inputs)
        self.assert_same(result.as_numpy("OUTPUT0"), arrays[0] & arrays[1])
        # One that is loaded is loaded again without harm.
        self.client.load_model("add_sub_uint16")

    def test_a_model_that_is_not_there_is_not_loaded(self):
        with self.assertRaises(InferenceServerException) as refused:
            self.client.load_model("nothing")
        self.assert_message(refused.exception, "nothing")
        with self.assertRaises(InferenceServerException) as refused:
            self.client.load_model("fixed", config="{")
        self.assert_message(refused.exception, "fixed", "config")
        # To unload it is no error either.
        self.client.unload_model("nothing")

    def test_a_model_is_brought_with_its_configuration(self):
        content = self.shared.files["add_sub_fp32"].read_bytes()
        config = '{"max_batch_size": 4, "instance_group": [{"count": 1, "kind": "KIND_CPU"}]}'
        self.client.load_model("brought", config=config, files={"file:1/model.onnx": content})
        try:
            self.assertEqual(self.client.get_model_config("brought")["max_batch_size"], 4)
            arrays = models.examples("FP32")
            result = self.client.infer("brought", add_sub_inputs("FP32", arrays))
            self.assert_same(result.as_numpy("OUTPUT0"), arrays[0] + arrays[1])
        finally:
            self.client.unload_model("brought")

    def test_what_is_logged_and_traced_is_set(self):
        before = self.client.get_log_settings()
        changed = self.client.update_log_settings({"log_verbose_level": 1})
        self.assertEqual(changed["log_verbose_level"], 1)
        self.client.update_log_settings({"log_verbose_level": 0})
        self.assertEqual(self.client.get_log_settings(), before)
        settings = {"trace_level": ["TIMESTAMPS"], "trace_rate": "5"}
        changed = self.client.update_trace_settings("fixed", settings)
        self.assertEqual(changed["trace_rate"], "5")
        cleared = {"trace_level": None, "trace_rate": None}
        self.client.update_trace_settings("fixed", cleared)
        self.assertEqual(self.client.get_trace_settings("fixed")["trace_level"], ["OFF"])


class TritonHttpAio(unittest.IsolatedAsyncioTestCase, ClientTest):
    async def asyncSetUp(self):
        self.client = triton_aio.InferenceServerClient(self.server.http)
        self.addAsyncCleanup(self.client.close)

    async def test_it_is_live_and_tells_of_itself(self):
        self.assertTrue(await self.client.is_server_live())
        self.assertTrue(await self.client.is_server_ready())
        self.assertTrue(await self.client.is_model_ready("fixed"))
        self.assertEqual((await self.client.get_server_metadata())["name"], "tessera")
        self.assertEqual((await self.client.get_model_metadata("fixed"))["name"], "fixed")
        self.assertEqual((await self.client.get_model_config("fixed"))["name"], "fixed")
        statistics = await self.client.get_inference_statistics("fixed")
        self.assertEqual(statistics["model_stats"][0]["name"], "fixed")
        self.assertTrue(await self.client.get_model_repository_index())

    async def test_many_requests_are_answered_at_once(self):
        async def one(seed: int):
            arrays = models.examples("INT64", seed=seed)
            inputs = add_sub_inputs("INT64", arrays, binary=seed % 2 == 0)
            wanted = [triton_aio.InferRequestedOutput("OUTPUT0", binary_data=seed % 3 == 0)]
            algorithm = ("gzip", "deflate", None)[seed % 3]
            result = await self.client.infer(
                "add_sub_int64",
                inputs,
                outputs=wanted,
                request_compression_algorithm=algorithm,
                response_compression_algorithm=algorithm,
            )
            self.assert_same(result.as_numpy("OUTPUT0"), arrays[0] + arrays[1])

        await asyncio.gather(*(one(seed) for seed in range(24)))

    async def test_an_error_has_its_message(self):
        with self.assertRaises(InferenceServerException) as refused:
            await self.client.infer("nothing", add_sub_inputs("INT32", models.examples("INT32")))
        self.assertEqual(refused.exception.status(), "404")
        self.assert_message(refused.exception, "nothing")


if __name__ == "__main__":
    unittest.main()
