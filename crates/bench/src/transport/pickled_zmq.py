"""ZeroMQ with pickled tensors between two Python processes, as BlockFlow sends them.

The baseline of `tessera bench hop --compare`: a tensor is pickled (protocol 5), sent whole as one
message, and unpickled by the receiver. One way, in turns; prints the times in microseconds as JSON.
"""

import json
import os
import pickle
import sys
import time

import zmq

try:
    import numpy
except ImportError:
    numpy = None

WARM_UP = 20


def tensor(size):
    """A tensor of so many bytes; without numpy an array of bytes, which is pickled as fast."""
    if numpy is None:
        return bytearray(size)
    return numpy.zeros(size // 4, dtype=numpy.float32)


def receiver(endpoint, answers, count):
    context = zmq.Context()
    incoming = context.socket(zmq.PULL)
    incoming.connect(endpoint)
    outgoing = context.socket(zmq.PUSH)
    outgoing.connect(answers)
    times = []
    for _ in range(count):
        sent, _data = pickle.loads(incoming.recv())
        times.append((time.monotonic_ns() - sent) / 1e3)
        outgoing.send(b"")
    outgoing.send(json.dumps(times).encode())
    incoming.close()
    outgoing.close(linger=2000)
    context.term()


def main():
    transport, size, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) + WARM_UP
    name = f"@tessera-pickled-{os.getpid()}"
    ends = {
        "ipc": (f"ipc://{name}-there", f"ipc://{name}-back"),
        "tcp": ("tcp://127.0.0.1:*", "tcp://127.0.0.1:*"),
    }[transport]
    # The other process is started before there is a context: those don't survive a fork. It learns
    # where to connect through a pipe.
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        with os.fdopen(reading) as pipe:
            there, back = pipe.readline().split()
        receiver(there, back, count)
        os._exit(0)
    os.close(reading)
    context = zmq.Context()
    outgoing = context.socket(zmq.PUSH)
    outgoing.bind(ends[0])
    answers = context.socket(zmq.PULL)
    answers.bind(ends[1])
    with os.fdopen(writing, "w") as pipe:
        there, back = (socket.getsockopt_string(zmq.LAST_ENDPOINT) for socket in (outgoing, answers))
        pipe.write(f"{there} {back}\n")
    data = tensor(size)
    for _ in range(count):
        outgoing.send(pickle.dumps((time.monotonic_ns(), data), protocol=5))
        answers.recv()
    times = json.loads(answers.recv())[WARM_UP:]
    os.waitpid(child, 0)
    kind = "bytearray" if numpy is None else "numpy " + numpy.__version__
    print(json.dumps({"pyzmq": zmq.__version__, "libzmq": zmq.zmq_version(), "tensor": kind, "us": times}))


main()
