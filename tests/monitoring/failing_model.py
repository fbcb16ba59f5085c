"""A model that fails on what it is asked: it looks rows of a table up, by numbers from outside.

Written as ONNX by hand, as it takes no more than fields of two kinds."""

import struct

ROWS, WIDTH = 4, 3
FLOAT, INT64 = 1, 7


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def block(field: int, content: bytes | str) -> bytes:
    content = content.encode() if isinstance(content, str) else content
    return varint(field << 3 | 2) + varint(len(content)) + content


def varint(value: int) -> bytes:
    written = b""
    while value > 127:
        written += bytes([value & 127 | 128])
        value >>= 7
    return written + bytes([value])


def value(name: str, dtype: int, dims: list[int]) -> bytes:
    shape = b"".join(block(1, number(1, dim)) for dim in dims)
    tensor = number(1, dtype) + block(2, shape)
    return block(1, name) + block(2, block(1, tensor))


def failing_model() -> bytes:
    """`row = table[number]`: a number that is no row's is an error of the run."""
    data = struct.pack(f"<{ROWS * WIDTH}f", *range(ROWS * WIDTH))
    table = number(1, ROWS) + number(1, WIDTH) + number(2, FLOAT) + block(8, "table")
    table += block(9, data)
    node = block(1, "table") + block(1, "number") + block(2, "row") + block(3, "look-up")
    node += block(4, "Gather")
    graph = block(1, node) + block(2, "rows") + block(5, table)
    graph += block(11, value("number", INT64, [1])) + block(12, value("row", FLOAT, [1, WIDTH]))
    return number(1, 8) + block(7, graph) + block(8, block(1, "") + number(2, 17))
