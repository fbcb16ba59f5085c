"""What the tests of every client have in common."""

import json
import unittest
import urllib.error
import urllib.request

import numpy
import server


class ClientTest(unittest.TestCase):
    """A test against the shared server."""

    @classmethod
    def setUpClass(cls):
        cls.shared = server.shared()
        cls.server = cls.shared.server

    def assert_same(self, got: numpy.ndarray, expected: numpy.ndarray, tolerance: float = 0.0):
        self.assertIsNotNone(got, "the output is not there")
        self.assertEqual(got.shape, expected.shape)
        if tolerance == 0.0:
            self.assertEqual(got.dtype, expected.dtype)
            numpy.testing.assert_array_equal(got, expected)
        else:
            largest = numpy.abs(expected).max()
            self.assertLessEqual(numpy.abs(got - expected).max(), tolerance * largest)

    def assert_message(self, error: Exception, *parts: str):
        """An error must name what is at fault."""
        text = str(error)
        for part in parts:
            self.assertIn(part, text)


def call(address: str, method: str, path: str, body=None, headers=None):
    """One plain HTTP request: status, headers and the body, as JSON where it is that."""
    if isinstance(body, (dict, list)):
        body = json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **(headers or {})}
    request = urllib.request.Request(f"http://{address}{path}", body, headers or {}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            status, told, content = response.status, response.headers, response.read()
    except urllib.error.HTTPError as error:
        with error:
            status, told, content = error.code, error.headers, error.read()
    if told.get("Content-Type") == "application/json":
        content = json.loads(content)
    return status, told, content
