"""KServe's clients, over REST and over gRPC.

Runs in a process of its own: Triton's client has messages of the same names as KServe's, and
protobuf takes them once per process.
"""

import logging
import unittest

import grpc
import httpx
import models
import numpy
from case import ClientTest
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig
from kserve.protocol.infer_type import RequestedOutput

# They log every error that they also raise.
logging.getLogger("kserve").setLevel(logging.CRITICAL)


def make_request(model: str, tensors: dict, binary: bool, **more) -> InferRequest:
    inputs = []
    for name, (datatype, array) in tensors.items():
        made = InferInput(name, list(array.shape), datatype)
        made.set_data_from_numpy(array, binary_data=binary)
        inputs.append(made)
    return InferRequest(model_name=model, infer_inputs=inputs, request_id="mine", **more)


def add_sub_request(datatype: str, arrays, binary: bool, **more) -> InferRequest:
    tensors = {f"INPUT{n}": (datatype, array) for n, array in enumerate(arrays)}
    return make_request(models.add_sub_name(datatype), tensors, binary, **more)


class KServeTest(unittest.IsolatedAsyncioTestCase, ClientTest):
    def check(self, model: str, arrays, response):
        self.assertEqual(response.model_name, model)
        self.assertEqual(response.id, "mine")
        expected = models.expected(
            self.shared.files[model], {"INPUT0": arrays[0], "INPUT1": arrays[1]}
        )
        for name, array in expected.items():
            self.assert_same(response.get_output_by_name(name).as_numpy(), array)


class KServeRest(KServeTest):
    async def asyncSetUp(self):
        self.client = InferenceRESTClient(RESTConfig(protocol="v2", retries=0))
        self.addAsyncCleanup(self.client.close)
        self.url = f"http://{self.server.http}"

    async def infer(self, request: InferRequest):
        return await self.client.infer(self.url, request, model_name=request.model_name)

    async def test_it_is_live_and_ready(self):
        self.assertIs(await self.client.is_server_live(self.url), True)
        self.assertIs(await self.client.is_server_ready(self.url), True)
        self.assertIs(await self.client.is_model_ready(self.url, "fixed"), True)
        self.assertIs(await self.client.is_model_ready(self.url, "nothing"), False)

    async def test_every_dtype_goes_in_and_out(self):
        for datatype in models.ADD_SUB:
            for binary in (True, False):
                if datatype == "FP16" and not binary:
                    continue  # The client itself refuses.
                with self.subTest(datatype=datatype, binary=binary):
                    arrays = models.examples(datatype, rows=2)
                    more = {"parameters": {"binary_data_output": binary}}
                    response = await self.infer(add_sub_request(datatype, arrays, binary, **more))
                    self.check(models.add_sub_name(datatype), arrays, response)

    async def test_outputs_can_be_asked_for(self):
        arrays = models.examples("FP32")
        outputs = [
            RequestedOutput("OUTPUT1", {"binary_data": True}),
            RequestedOutput("OUTPUT0", {"binary_data": False}),
        ]
        response = await self.infer(
            add_sub_request("FP32", arrays, binary=True, request_outputs=outputs)
        )
        self.check("add_sub_fp32", arrays, response)
        self.assertEqual([output.name for output in response.outputs], ["OUTPUT1", "OUTPUT0"])

    async def test_strings_go_in_and_out(self):
        strings = numpy.array([["a", "", "Grüße", "x" * 100]], object)
        for binary in (True, False):
            with self.subTest(binary=binary):
                more = {"parameters": {"binary_data_output": binary}}
                request = make_request("texts", {"INPUT0": ("BYTES", strings)}, binary, **more)
                got = (await self.infer(request)).outputs[0].as_numpy()
                got = [text.decode() if isinstance(text, bytes) else text for text in got.flat]
                self.assertEqual(got, list(strings.flat))

    async def test_a_plain_dictionary_is_sent_as_it_is(self):
        data = [[0.5, -1.0, 2.0], [-3.0, 4.0, 0.0]]
        body = {"inputs": [{"name": "x", "shape": [2, 3], "datatype": "FP32", "data": data}]}
        response = await self.client.infer(self.url, body, model_name="fixed")
        self.assert_same(response.outputs[0].as_numpy(), numpy.abs(numpy.float32(data)))

    async def test_errors_have_their_message(self):
        request = add_sub_request("INT32", models.examples("INT32"), binary=False)
        with self.assertRaises(httpx.HTTPStatusError) as refused:
            await self.client.infer(self.url, request, model_name="nothing")
        self.assertEqual(refused.exception.response.status_code, 404)
        self.assert_message(refused.exception, "nothing")
        with self.assertRaises(httpx.HTTPStatusError) as refused:
            await self.client.infer(self.url, request, model_name="add_sub_fp32")
        self.assertEqual(refused.exception.response.status_code, 400)
        self.assert_message(refused.exception, "INPUT0")


class KServeGrpc(KServeTest):
    async def asyncSetUp(self):
        self.client = InferenceGRPCClient(self.server.grpc, retries=0)
        self.addAsyncCleanup(self.client.close)

    async def test_it_is_live_and_ready(self):
        self.assertIs(await self.client.is_server_live(), True)
        self.assertIs(await self.client.is_server_ready(), True)
        self.assertIs(await self.client.is_model_ready("fixed"), True)
        self.assertIs(await self.client.is_model_ready("nothing"), False)

    async def test_every_dtype_goes_in_and_out_typed_and_raw(self):
        for datatype in models.ADD_SUB:
            for binary in (True, False):
                if datatype == "FP16" and not binary:
                    continue  # gRPC has no contents for it.
                with self.subTest(datatype=datatype, binary=binary):
                    arrays = models.examples(datatype, rows=2)
                    request = add_sub_request(datatype, arrays, binary)
                    response = await self.client.infer(request)
                    self.check(models.add_sub_name(datatype), arrays, response)

    async def test_strings_go_in_and_out(self):
        strings = numpy.array([["a", "", "Grüße", "x" * 100]], object)
        request = make_request("texts", {"INPUT0": ("BYTES", strings)}, binary=True)
        got = (await self.client.infer(request)).outputs[0].as_numpy()
        self.assertEqual([text.decode() for text in got.flat], list(strings.flat))

    async def test_errors_have_a_code_and_a_message(self):
        arrays = models.examples("INT32")
        for model, code, part in (
            ("nothing", grpc.StatusCode.NOT_FOUND, "nothing"),
            ("add_sub_fp32", grpc.StatusCode.INVALID_ARGUMENT, "INPUT0"),
        ):
            request = add_sub_request("INT32", arrays, binary=True)
            request.model_name = model
            with self.assertRaises(grpc.RpcError) as refused:
                await self.client.infer(request)
            self.assertEqual(refused.exception.code(), code)
            self.assert_message(refused.exception.details(), part)


del KServeTest  # Has no tests of its own.

if __name__ == "__main__":
    unittest.main()
