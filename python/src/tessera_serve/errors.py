"""What can go wrong, as exceptions. All of them are a `TesseraError`."""

from __future__ import annotations


class TesseraError(Exception):
    """Something went wrong; the message says what, and what was expected.

    `status` is the HTTP status where a server said it. `request_id` is the name that the caller
    gave the request.
    """

    def __init__(
        self, message: str, *, status: int | None = None, request_id: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.request_id = request_id

    def __str__(self) -> str:
        return self.message


class InvalidRequest(TesseraError, ValueError):
    """The request makes no sense: a wrong dtype, shape or name, or a document with errors."""


class NotFound(TesseraError, KeyError):
    """There is no such task, version, exit, unit or route."""


class AccessDenied(TesseraError):
    """The server wants a token, or the token's roles do not allow this."""


class Unsupported(TesseraError):
    """The request makes sense, but this server can't do that."""


class ExecutionFailed(TesseraError):
    """A unit failed on the request."""


class Unavailable(TesseraError):
    """The server can't do that now: a unit is gone, or the server is about to stop."""


class Refused(Unavailable):
    """The server has too much to do. Try again after `retry_after` seconds."""

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        request_id: str | None = None,
        retry_after: float = 1.0,
    ) -> None:
        super().__init__(message, status=status, request_id=request_id)
        self.retry_after = retry_after


class DeadlineExceeded(Unavailable, TimeoutError):
    """The deadline passed before there was an answer."""


class ServerLost(TesseraError, ConnectionError):
    """The server can't be reached, has closed the connection, or says nothing any more."""


class StartFailed(TesseraError):
    """The server did not start; the message has what the server said."""


class BinaryNotFound(StartFailed):
    """There is no `tessera` binary where one was expected."""


class ExportFailed(TesseraError, ValueError):
    """A model can't be exported as it was asked for."""
