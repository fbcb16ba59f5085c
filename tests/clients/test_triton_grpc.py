"""tritonclient.grpc: waiting, not waiting, and over a stream."""

import asyncio
import queue
import unittest

import grpc
import models
import numpy
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from case import ClientTest
from tritonclient.utils import InferenceServerException

ANSWER_SECONDS = 30


def make_input(name: str, datatype: str, array: numpy.ndarray):
    made = triton.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array)
    return made


def add_sub_inputs(datatype: str, arrays):
    return [make_input(f"INPUT{index}", datatype, array) for index, array in enumerate(arrays)]


class TritonGrpc(ClientTest):
    def setUp(self):
        self.client = triton.InferenceServerClient(self.server.grpc)
        self.addCleanup(self.client.close)

    def expected(self, model: str, **inputs):
        return models.expected(self.shared.files[model], inputs)

    def test_server_and_models_are_live_and_ready(self):
        self.assertTrue(self.client.is_server_live())
        self.assertTrue(self.client.is_server_ready())
        for model in self.shared.files:
            self.assertTrue(self.client.is_model_ready(model), model)
        self.assertFalse(self.client.is_model_ready("nothing"))
        self.assertFalse(self.client.is_model_ready("fixed", "7"))

    def test_metadata_and_configuration_are_those_of_http(self):
        self.assertEqual(self.client.get_server_metadata().name, "tessera")
        metadata = self.client.get_model_metadata("mixed")
        inputs = [(port.name, port.datatype, list(port.shape)) for port in metadata.inputs]
        outputs = [(port.name, port.datatype, list(port.shape)) for port in metadata.outputs]
        self.assertEqual(inputs, [("values", "FP32", [2, 4]), ("ids", "INT64", [4])])
        self.assertEqual(outputs, [("sum", "FP32", [2, 4]), ("total", "INT64", [])])
        self.assertEqual(list(metadata.versions), ["1"])
        config = self.client.get_model_config("add_sub_fp16", as_json=True)["config"]
        self.assertGreater(config["max_batch_size"], 0)
        self.assertEqual(config["input"][0]["data_type"], "TYPE_FP16")
        self.assertEqual(config["input"][0]["dims"], ["16"])

    def test_statistics_count_what_was_asked(self):
        def statistics():
            (of_model,) = self.client.get_inference_statistics("add_sub_int8").model_stats
            return of_model

        before = statistics()
        arrays = models.examples("INT8", rows=3)
        self.client.infer("add_sub_int8", add_sub_inputs("INT8", arrays))
        after = statistics()
        self.assertEqual(after.inference_count - before.inference_count, 3)
        self.assertEqual(after.execution_count - before.execution_count, 1)
        success = [told.inference_stats.success for told in (before, after)]
        self.assertEqual(success[1].count - success[0].count, 1)
        self.assertGreater(success[1].ns, success[0].ns)
        everything = self.client.get_inference_statistics().model_stats
        self.assertEqual({told.name for told in everything}, set(self.shared.files))

    def test_every_dtype_goes_in_and_out(self):
        for datatype in models.ADD_SUB:
            with self.subTest(datatype):
                arrays = models.examples(datatype, rows=2)
                model = models.add_sub_name(datatype)
                result = self.client.infer(model, add_sub_inputs(datatype, arrays))
                expected = self.expected(model, INPUT0=arrays[0], INPUT1=arrays[1])
                for name, array in expected.items():
                    self.assert_same(result.as_numpy(name), array)

    def test_strings_may_be_any_bytes(self):
        for special in (b"plain", "Grüße".encode(), b"\xff\xfe", b"zero\x00byte"):
            with self.subTest(special):
                strings = numpy.array([[b"", special, b"x" * 5000, b" "]], object)
                result = self.client.infer("texts", [make_input("INPUT0", "BYTES", strings)])
                self.assert_same(result.as_numpy("OUTPUT0"), strings)

    def test_outputs_come_in_the_order_that_was_asked_for(self):
        arrays = models.examples("INT32")
        wanted = [triton.InferRequestedOutput("OUTPUT1"), triton.InferRequestedOutput("OUTPUT0")]
        result = self.client.infer(
            "add_sub_int32", add_sub_inputs("INT32", arrays), outputs=wanted, request_id="mine"
        )
        response = result.get_response()
        self.assertEqual([output.name for output in response.outputs], ["OUTPUT1", "OUTPUT0"])
        self.assertEqual(response.id, "mine")
        self.assertEqual(response.model_version, "1")
        self.assert_same(result.as_numpy("OUTPUT1"), arrays[0] - arrays[1])

    def test_dtypes_and_ranks_may_be_mixed(self):
        values = numpy.arange(8, dtype=numpy.float32).reshape(2, 4)
        ids = numpy.array([1, 2, 3, -4], dtype=numpy.int64)
        inputs = [make_input("ids", "INT64", ids), make_input("values", "FP32", values)]
        result = self.client.infer("mixed", inputs)
        expected = self.expected("mixed", values=values, ids=ids)
        self.assert_same(result.as_numpy("sum"), expected["sum"])
        self.assert_same(result.as_numpy("total"), expected["total"])

    def test_a_network_answers_as_onnxruntime_does(self):
        images = numpy.random.default_rng(1).standard_normal((2, 3, 224, 224), numpy.float32)
        expected = self.expected("resnet", input=images)["output"]
        inputs = [make_input("input", "FP32", images)]
        result = self.client.infer("resnet", inputs)
        self.assert_same(result.as_numpy("output"), expected, tolerance=1e-4)

    def test_a_tensor_of_many_megabytes_goes_in_and_out(self):
        x = numpy.random.default_rng(4).standard_normal((1, 4_000_000), numpy.float32)
        result = self.client.infer("dynamic", [make_input("x", "FP32", x)])
        self.assert_same(result.as_numpy("y"), -numpy.maximum(x, 0))

    def test_compression_is_understood(self):
        arrays = models.examples("INT32", rows=8)
        for algorithm in ("gzip", "deflate"):
            with self.subTest(algorithm):
                result = self.client.infer(
                    "add_sub_int32",
                    add_sub_inputs("INT32", arrays),
                    compression_algorithm=algorithm,
                )
                self.assert_same(result.as_numpy("OUTPUT0"), arrays[0] + arrays[1])

    def test_classification_gives_the_highest_scores_of_each_row(self):
        x = numpy.array([[0.1, 0.9, 0.3, 0.2, 0.5], [5, 4, 3, 2, 1]], numpy.float32)
        wanted = [triton.InferRequestedOutput("y", class_count=2)]
        result = self.client.infer("scores", [make_input("x", "FP32", x)], outputs=wanted)
        got = result.as_numpy("y")
        self.assertEqual(got.shape, (2, 2))
        self.assertEqual([text.decode().split(":")[1] for text in got.flat], ["1", "4", "0", "1"])

    def test_requests_that_do_not_wait_are_answered(self):
        answers = queue.Queue()
        asked = {}
        for seed in range(20):
            arrays = asked[str(seed)] = models.examples("FP32", seed=seed)
            self.client.async_infer(
                "add_sub_fp32",
                add_sub_inputs("FP32", arrays),
                lambda result, error: answers.put((result, error)),
                request_id=str(seed),
            )
        while asked:
            result, error = answers.get(timeout=ANSWER_SECONDS)
            self.assertIsNone(error)
            arrays = asked.pop(result.get_response().id)
            self.assert_same(result.as_numpy("OUTPUT0"), arrays[0] + arrays[1])

    def test_a_stream_answers_in_order_and_outlives_an_error(self):
        answers = queue.Queue()
        self.client.start_stream(lambda result, error: answers.put((result, error)))
        arrays = [models.examples("INT32", seed=seed) for seed in range(10)]
        for seed, pair in enumerate(arrays):
            self.client.async_stream_infer(
                "add_sub_int32", add_sub_inputs("INT32", pair), request_id=str(seed)
            )
        self.client.async_stream_infer(
            "nothing", add_sub_inputs("INT32", arrays[0]), request_id="wrong"
        )
        self.client.async_stream_infer(
            "add_sub_int32",
            add_sub_inputs("INT32", arrays[0]),
            request_id="last",
            enable_empty_final_response=True,
        )
        for seed, pair in enumerate(arrays):
            result, error = answers.get(timeout=ANSWER_SECONDS)
            self.assertIsNone(error)
            self.assertEqual(result.get_response().id, str(seed))
            self.assert_same(result.as_numpy("OUTPUT0"), pair[0] + pair[1])
        result, error = answers.get(timeout=ANSWER_SECONDS)
        self.assertIsNone(result)
        self.assert_message(error, "nothing")
        result, error = answers.get(timeout=ANSWER_SECONDS)
        self.assertIsNone(error)
        self.assertEqual(result.get_response().id, "last")
        self.assertTrue(result.get_response().parameters["triton_final_response"].bool_param)
        self.client.stop_stream()
        self.assertTrue(answers.empty())

    def test_a_timeout_of_the_client_ends_the_wait(self):
        images = numpy.zeros((8, 3, 224, 224), numpy.float32)
        with self.assertRaises(InferenceServerException) as refused:
            self.client.infer(
                "resnet", [make_input("input", "FP32", images)], client_timeout=0.005
            )
        self.assert_message(refused.exception, "Deadline Exceeded")
        self.assertTrue(self.client.is_model_ready("resnet"))

    def test_a_timeout_of_the_request_is_kept(self):
        images = numpy.zeros((8, 3, 224, 224), numpy.float32)
        with self.assertRaises(InferenceServerException) as refused:
            self.client.infer("resnet", [make_input("input", "FP32", images)], timeout=1000)
        self.assertEqual(refused.exception.status(), "StatusCode.DEADLINE_EXCEEDED")
        self.assert_message(refused.exception, "resnet")

    def test_a_request_can_be_taken_back(self):
        answers = queue.Queue()
        images = numpy.zeros((8, 3, 224, 224), numpy.float32)
        call = self.client.async_infer(
            "resnet",
            [make_input("input", "FP32", images)],
            lambda result, error: answers.put((result, error)),
        )
        call.cancel()
        result, error = answers.get(timeout=ANSWER_SECONDS)
        self.assertIsNone(result)
        self.assert_message(error, "CANCELLED")

    def test_models_are_indexed_unloaded_and_loaded(self):
        index = self.client.get_model_repository_index().models
        ready = {entry.name for entry in index if entry.state == "READY"}
        self.assertEqual(ready, set(self.shared.files))
        self.client.unload_model("add_sub_uint32")
        try:
            self.assertFalse(self.client.is_model_ready("add_sub_uint32"))
            with self.assertRaises(InferenceServerException) as refused:
                arrays = models.examples("UINT32")
                self.client.infer("add_sub_uint32", add_sub_inputs("UINT32", arrays))
            self.assert_message(refused.exception, "add_sub_uint32")
        finally:
            self.client.load_model("add_sub_uint32")
        self.assertTrue(self.client.is_model_ready("add_sub_uint32"))
        with self.assertRaises(InferenceServerException) as refused:
            self.client.load_model("nothing")
        self.assert_message(refused.exception, "nothing")
        self.client.unload_model("nothing")
        content = self.shared.files["add_sub_fp32"].read_bytes()
        files = {"file:1/model.onnx": content}
        self.client.load_model("brought", config='{"max_batch_size": 4}', files=files)
        config = self.client.get_model_config("brought").config
        self.assertEqual((config.max_batch_size, config.platform), (4, "onnxruntime_onnx"))
        self.client.unload_model("brought")

    def test_what_is_logged_and_traced_is_set(self):
        changed = self.client.update_log_settings({"log_verbose_level": 1}, as_json=True)
        self.assertEqual(changed["settings"]["log_verbose_level"]["uint32_param"], 1)
        self.client.update_log_settings({"log_verbose_level": 0})
        changed = self.client.update_trace_settings("fixed", {"trace_rate": "5"})
        self.assertEqual(list(changed.settings["trace_rate"].value), ["5"])
        self.client.update_trace_settings("fixed", {"trace_rate": None})

    def test_a_probe_finds_it_healthy(self):
        with grpc.insecure_channel(self.server.grpc) as channel:
            # Without a service's name; status 1 is SERVING.
            answer = channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=10)
        self.assertEqual(answer, b"\x08\x01")

    def test_errors_have_a_code_and_name_what_is_wrong(self):
        int32 = models.examples("INT32")
        wide = numpy.zeros((1, 17), numpy.int32)
        right = add_sub_inputs("INT32", int32)
        cut = make_input("INPUT1", "INT32", int32[1])
        cut._raw_content = cut._raw_content[:-4]
        stranger = [*right, make_input("INPUT7", "INT32", int32[0])]
        wanted = [triton.InferRequestedOutput("OUTPUT7")]
        for code, parts, model, inputs, more in (
            ("NOT_FOUND", ["nothing"], "nothing", right, {}),
            ("NOT_FOUND", ["add_sub_int32", "7"], "add_sub_int32", right, {"model_version": "7"}),
            ("INVALID_ARGUMENT", ["INPUT1"], "add_sub_int32", right[:1], {}),
            ("INVALID_ARGUMENT", ["INPUT7"], "add_sub_int32", stranger, {}),
            ("INVALID_ARGUMENT", ["INPUT0"], "add_sub_fp32", right, {}),
            ("INVALID_ARGUMENT", ["INPUT1", "64", "60"], "add_sub_int32", [right[0], cut], {}),
            (
                "INVALID_ARGUMENT",
                ["INPUT0", "17"],
                "add_sub_int32",
                add_sub_inputs("INT32", [wide, wide]),
                {},
            ),
            ("INVALID_ARGUMENT", ["OUTPUT7"], "add_sub_int32", right, {"outputs": wanted}),
            ("INVALID_ARGUMENT", ["sequence"], "add_sub_int32", right, {"sequence_id": 5}),
        ):
            with self.subTest(code=code, parts=parts):
                with self.assertRaises(InferenceServerException) as refused:
                    self.client.infer(model, inputs, **more)
                self.assertEqual(refused.exception.status(), f"StatusCode.{code}")
                self.assert_message(refused.exception, *parts)
        for ask in (
            self.client.get_model_metadata,
            self.client.get_model_config,
            self.client.get_inference_statistics,
        ):
            with self.assertRaises(InferenceServerException) as refused:
                ask("nothing")
            self.assertEqual(refused.exception.status(), "StatusCode.NOT_FOUND")
            self.assert_message(refused.exception, "nothing")


class TritonGrpcAio(unittest.IsolatedAsyncioTestCase, ClientTest):
    async def asyncSetUp(self):
        self.client = triton_aio.InferenceServerClient(self.server.grpc)
        self.addAsyncCleanup(self.client.close)

    async def test_it_is_live_and_tells_of_itself(self):
        self.assertTrue(await self.client.is_server_live())
        self.assertTrue(await self.client.is_server_ready())
        self.assertTrue(await self.client.is_model_ready("fixed"))
        self.assertEqual((await self.client.get_server_metadata()).name, "tessera")
        self.assertEqual((await self.client.get_model_metadata("fixed")).name, "fixed")
        self.assertEqual((await self.client.get_model_config("fixed")).config.name, "fixed")
        statistics = await self.client.get_inference_statistics("fixed")
        self.assertEqual(statistics.model_stats[0].name, "fixed")

    async def test_many_requests_are_answered_at_once(self):
        async def one(seed: int):
            arrays = models.examples("INT64", seed=seed)
            result = await self.client.infer("add_sub_int64", add_sub_inputs("INT64", arrays))
            self.assert_same(result.as_numpy("OUTPUT0"), arrays[0] + arrays[1])

        await asyncio.gather(*(one(seed) for seed in range(24)))

    async def test_a_stream_answers_in_order(self):
        pairs = [models.examples("INT32", seed=seed) for seed in range(8)]

        async def requests():
            for seed, pair in enumerate(pairs):
                yield {
                    "model_name": "add_sub_int32",
                    "inputs": add_sub_inputs("INT32", pair),
                    "request_id": str(seed),
                }

        got = 0
        async for result, error in self.client.stream_infer(requests()):
            self.assertIsNone(error)
            self.assertEqual(result.get_response().id, str(got))
            self.assert_same(result.as_numpy("OUTPUT0"), pairs[got][0] + pairs[got][1])
            got += 1
        self.assertEqual(got, len(pairs))

    async def test_an_error_has_its_message(self):
        with self.assertRaises(InferenceServerException) as refused:
            await self.client.infer("nothing", add_sub_inputs("INT32", models.examples("INT32")))
        self.assertEqual(refused.exception.status(), "StatusCode.NOT_FOUND")
        self.assert_message(refused.exception, "nothing")


if __name__ == "__main__":
    unittest.main()
