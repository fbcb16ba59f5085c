"""What is wrong with a request over HTTP: the status, and a message that names it."""

import json
import unittest

import models
import numpy
import tritonclient.http as triton
from case import ClientTest, call
from test_triton_http import add_sub_inputs, make_input
from tritonclient.utils import InferenceServerException


class HttpErrors(ClientTest):
    def infer(self, body, model="add_sub_int32", headers=None):
        status, told, answer = call(
            self.server.http, "POST", f"/v2/models/{model}/infer", body, headers
        )
        self.assertEqual(told["Content-Type"], "application/json")
        return status, answer

    def refused(self, status: int, parts: list[str], body, **more):
        with self.subTest(status=status, parts=parts):
            got, answer = self.infer(body, **more)
            self.assertEqual(got, status, answer)
            self.assert_message(answer["error"], *parts)

    def body(self, **changed):
        """A request that is right, but for what is changed of its second input."""
        right = {"datatype": "INT32", "shape": [1, 16], "data": [1] * 16}
        return {"inputs": [{"name": "INPUT0", **right}, {"name": "INPUT1", **right, **changed}]}

    def test_the_request_that_is_varied_here_is_right(self):
        status, answer = self.infer(self.body())
        self.assertEqual(status, 200, answer)
        self.assertEqual(answer["outputs"][0]["data"], [2] * 16)

    def test_what_is_not_there_is_404(self):
        self.refused(404, ["nothing"], self.body(), model="nothing")
        self.refused(404, ["add_sub_int32", "7"], self.body(), model="add_sub_int32/versions/7")
        self.refused(404, ["add_sub_int32", "x"], self.body(), model="add_sub_int32/versions/x")
        for path in (
            "/v2/models/nothing",
            "/v2/models/nothing/config",
            "/v2/models/nothing/stats",
            "/v2/models/nothing/versions/1",
        ):
            status, _, answer = call(self.server.http, "GET", path)
            self.assertEqual(status, 404, path)
            self.assert_message(answer["error"], "nothing")
        for path in ("/v2/models/fixed/versions/7", "/v2/models/fixed/versions/7/config"):
            status, _, answer = call(self.server.http, "GET", path)
            self.assertEqual(status, 404, path)
            self.assert_message(answer["error"], "fixed", "7")
        status, _, answer = call(self.server.http, "GET", "/v2/nowhere")
        self.assertEqual(status, 404)
        self.assert_message(answer["error"], "/v2/nowhere")

    def test_a_wrong_method_is_405(self):
        status, _, answer = call(self.server.http, "GET", "/v2/models/fixed/infer")
        self.assertEqual(status, 405)
        self.assert_message(answer["error"], "GET", "/v2/models/fixed/infer")

    def test_what_is_no_json_is_400(self):
        self.refused(400, ["JSON"], b"this is not JSON")
        self.refused(400, ["JSON"], b"")
        self.refused(400, ["JSON"], b"[]")
        self.refused(400, ["JSON"], json.dumps(self.body()).encode()[:-5])
        self.refused(400, ["inputs"], {})

    def test_a_wrong_dtype_is_400(self):
        self.refused(400, ["INPUT1", "i32", "f32"], self.body(datatype="FP32"))
        self.refused(400, ["INPUT1", "FLOAT"], self.body(datatype="FLOAT"))
        self.refused(400, ["INPUT1", "1.5"], self.body(data=[1.5] * 16))
        self.refused(400, ["INPUT1", "2147483648"], self.body(data=[2**31] * 16))
        self.refused(400, ["INPUT1"], self.body(data=["one"] * 16))
        self.refused(400, ["INPUT1"], self.body(data=[None] * 16))

    def test_a_wrong_shape_is_400(self):
        self.refused(400, ["INPUT1", "17"], self.body(shape=[1, 17], data=[1] * 17))
        self.refused(400, ["INPUT1", "16"], self.body(shape=[16]))
        self.refused(400, ["INPUT1", "-1"], self.body(shape=[-1, 16]))
        self.refused(400, ["INPUT1", "16", "15"], self.body(data=[1] * 15))
        self.refused(400, ["INPUT1", "16", "17"], self.body(data=[1] * 17))
        self.refused(400, ["INPUT1"], self.body(shape=[2**62, 16]))
        # Rows that differ between inputs.
        self.refused(400, ["INPUT1"], self.body(shape=[2, 16], data=[1] * 32))

    def test_missing_and_unknown_tensors_are_400(self):
        body = self.body()
        self.refused(400, ["INPUT1"], {"inputs": body["inputs"][:1]})
        self.refused(400, ["INPUT0"], {"inputs": []})
        stranger = {**body["inputs"][0], "name": "INPUT7"}
        self.refused(400, ["INPUT7"], {"inputs": [*body["inputs"], stranger]})
        self.refused(400, ["INPUT0"], {"inputs": [body["inputs"][0]] * 2})
        self.refused(400, ["OUTPUT7"], {**body, "outputs": [{"name": "OUTPUT7"}]})

    def test_more_rows_than_a_batch_may_have_are_400(self):
        status, _, config = call(self.server.http, "GET", "/v2/models/add_sub_int32/config")
        rows = config["max_batch_size"] + 1
        body = self.body()
        for tensor in body["inputs"]:
            tensor.update(shape=[rows, 16], data=[1] * 16 * rows)
        self.refused(400, ["add_sub_int32", str(rows)], body)

    def test_wrong_byte_counts_are_400(self):
        arrays = models.examples("INT32")
        body, length = triton.InferenceServerClient.generate_request_body(
            add_sub_inputs("INT32", arrays)
        )
        headers = {"Inference-Header-Content-Length": str(length)}
        self.refused(400, ["128", "124"], body[:-4], headers=headers)
        self.refused(400, ["128", "132"], body + b"more", headers=headers)
        short = body[:length].replace(b'"binary_data_size":64', b'"binary_data_size":60')
        self.refused(400, ["INPUT0", "64", "60"], short + body[length:], headers=headers)
        self.refused(400, ["JSON"], body, headers={})
        for wrong in ("99999", "-1", "x"):
            headers = {"Inference-Header-Content-Length": wrong}
            self.refused(400, ["Inference-Header-Content-Length"], body, headers=headers)

    def test_wrong_strings_are_400(self):
        one = numpy.array([["a", "b", "c", "d"]], object)
        body, length = triton.InferenceServerClient.generate_request_body(
            [make_input("INPUT0", "BYTES", one)]
        )
        headers = {"Inference-Header-Content-Length": str(length)}
        broken = body[:length] + b"\xff" + body[length + 1 :]
        self.refused(400, ["INPUT0", "string 0"], broken, model="texts", headers=headers)

    def test_wrong_compression_is_refused(self):
        self.refused(400, ["Content-Encoding"], b"no gzip", headers={"Content-Encoding": "gzip"})
        self.refused(415, ["zstd"], b"{}", headers={"Content-Encoding": "zstd"})

    def test_the_id_comes_back_with_an_error(self):
        status, answer = self.infer({**self.body(datatype="FP32"), "id": "mine"})
        self.assertEqual((status, answer["id"]), (400, "mine"))

    def test_what_a_server_without_sequences_can_not_do_is_refused(self):
        body = {**self.body(), "parameters": {"sequence_id": 5, "sequence_start": True}}
        self.refused(400, ["sequence"], body)

    def test_a_deadline_that_passes_is_503_and_names_the_task(self):
        images = numpy.zeros((8, 3, 224, 224), numpy.float32)
        with triton.InferenceServerClient(self.server.http) as client:
            with self.assertRaises(InferenceServerException) as refused:
                client.infer("resnet", [make_input("input", "FP32", images)], timeout=1000)
            self.assertEqual(refused.exception.status(), "503")
            self.assert_message(refused.exception, "resnet")

    def test_the_triton_client_raises_what_the_server_says(self):
        with triton.InferenceServerClient(self.server.http) as client:
            right = add_sub_inputs("INT32", models.examples("INT32"))
            for status, parts, model, inputs, version in (
                ("404", ["nothing"], "nothing", right, ""),
                ("404", ["add_sub_int32", "7"], "add_sub_int32", right, "7"),
                ("400", ["INPUT1"], "add_sub_int32", right[:1], ""),
                ("400", ["INPUT0"], "add_sub_fp32", right, ""),
            ):
                with self.subTest(parts=parts):
                    with self.assertRaises(InferenceServerException) as refused:
                        client.infer(model, inputs, model_version=version)
                    self.assertEqual(refused.exception.status(), status)
                    self.assert_message(refused.exception, *parts)
            # The connection is as good as before.
            client.infer("add_sub_int32", right)


if __name__ == "__main__":
    unittest.main()
