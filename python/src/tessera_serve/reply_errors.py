"""Which exception an answer with an error status becomes."""

from __future__ import annotations

import json
from typing import Any

from tessera_serve.errors import (
    AccessDenied,
    DeadlineExceeded,
    ExecutionFailed,
    InvalidRequest,
    NotFound,
    Refused,
    TesseraError,
    Unavailable,
    Unsupported,
)
from tessera_serve.http_call import Answer, Call, Reply

CLASS_OF_STATUS: dict[int, type[TesseraError]] = {
    401: AccessDenied,
    403: AccessDenied,
    404: NotFound,
    500: ExecutionFailed,
    501: Unsupported,
    503: Unavailable,
}
# Over HTTP all that can't be done now is 503; these words are in messages about time that ran out.
WORDS_OF_DEADLINES = ("deadline passed", "in time", "run was ended after")


def read_reply(call: Call[Answer], reply: Reply) -> Answer:
    """What the reply says, or the exception that it stands for."""
    if 200 <= reply.status < 300:
        return call.read(reply)
    raise error_of(call, reply)


def error_of(call: Call[Any], reply: Reply) -> TesseraError:
    """The exception that an answer with an error status stands for."""
    message, request_id = _told_by(reply)
    if not message:
        message = f"{call.method} {call.path} was answered with {reply.status}, expected 200"
    if reply.status == 503 and "retry-after" in reply.headers:
        seconds = _seconds(reply.headers["retry-after"])
        return Refused(message, status=reply.status, request_id=request_id, retry_after=seconds)
    return _class_of(reply.status, message)(message, status=reply.status, request_id=request_id)


def _class_of(status: int, message: str) -> type[TesseraError]:
    if status == 503 and any(words in message for words in WORDS_OF_DEADLINES):
        return DeadlineExceeded
    if status in CLASS_OF_STATUS:
        return CLASS_OF_STATUS[status]
    return InvalidRequest if 400 <= status < 500 else TesseraError


def _told_by(reply: Reply) -> tuple[str, str | None]:
    """The server's message and the request's name; the body as it is where that is no JSON."""
    try:
        document = json.loads(reply.body)
    except ValueError:
        return reply.body.decode(errors="replace").strip()[:1000], None
    if not isinstance(document, dict):
        return str(document), None
    return str(document.get("error", "")), document.get("id")


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 1.0
