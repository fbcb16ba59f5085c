"""What can be asked of the control plane: `docs/openapi.json` describes all of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

from tessera_serve.errors import InvalidRequest
from tessera_serve.http_call import Body, Call, MemoryBody, Port, Reply, json_body, path_of

Definition = Union[Mapping[str, Any], Sequence[Any]]
JSON_HEADERS = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class ExitStatus:
    """An exit of a task: it is taken where the normalised entropy is at most the threshold."""

    name: str
    threshold: float
    taken: int
    """Rows that left there so far."""


def control_call(method: str, path: str, document: object = None) -> Call[Any]:
    """Any request to the control plane; the answer is its JSON."""
    has_body = method in ("PUT", "POST")
    return Call(
        method=method,
        path=path,
        port=Port.CONTROL,
        headers=JSON_HEADERS if has_body else {},
        body=json_body({} if document is None else document) if has_body else MemoryBody(),
        read=_read_json,
    )


def put_task_call(name: str, definition: Definition) -> Call[Any]:
    """Adds a task or changes it."""
    return control_call("PUT", path_of("v1", "tasks", name), definition)


def task_definition(
    definition: Definition | None, model: str | None, fields: Mapping[str, Any]
) -> Definition:
    """The document of a task, from a definition, or from a model and fields."""
    if (definition is None) == (model is None):
        raise InvalidRequest(
            "expected either the definition of a task (blocks, or a document) or model=NAME"
        )
    if model is not None:
        return {"model": model, **fields}
    if isinstance(definition, Mapping):
        return {**definition, **fields}
    assert definition is not None
    blocks = [definition] if isinstance(definition, str) else list(definition)
    return {"path": blocks, **fields} if fields else blocks


def remove_task_call(name: str) -> Call[Any]:
    """Stops serving a task."""
    return control_call("DELETE", path_of("v1", "tasks", name))


def task_status_call(name: str) -> Call[Any]:
    """How a task is, and how it is defined."""
    return control_call("GET", path_of("v1", "tasks", name))


def tasks_call() -> Call[list[dict[str, Any]]]:
    """Every task, and how it is."""
    return Call("GET", path_of("v1", "tasks"), lambda reply: _list(reply, "tasks"), Port.CONTROL)


def units_call() -> Call[list[dict[str, Any]]]:
    """Every unit, and how it is."""
    return Call("GET", path_of("v1", "units"), lambda reply: _list(reply, "units"), Port.CONTROL)


def unit_call(unit: str) -> Call[Any]:
    """How a unit is."""
    return control_call("GET", path_of("v1", "units", unit))


def unit_action_call(unit: str, action: str) -> Call[Any]:
    """Has a unit stopped, started or pinged."""
    return control_call("POST", path_of("v1", "units", unit, action))


def system_call() -> Call[Any]:
    """The tasks that there should be."""
    return control_call("GET", path_of("v1", "system"))


def put_system_call(document: Mapping[str, Any]) -> Call[Any]:
    """Makes these the tasks that there are."""
    return control_call("PUT", path_of("v1", "system"), document)


def plan_call() -> Call[Any]:
    """What the planner of a cluster would do, and why."""
    return control_call("GET", path_of("v1", "plan"))


def exits_call(task: str) -> Call[list[ExitStatus]]:
    """The exits of a task."""
    path = path_of("v1", "tasks", task, "exits")
    return Call("GET", path, lambda reply: list(map(_exit, _list(reply, "exits"))), Port.CONTROL)


def put_threshold_call(task: str, exit_name: str, threshold: float) -> Call[ExitStatus]:
    """Sets the threshold of an exit."""
    return Call(
        method="PUT",
        path=path_of("v1", "tasks", task, "exits", exit_name),
        port=Port.CONTROL,
        headers=JSON_HEADERS,
        body=json_body({"threshold": float(threshold)}),
        read=lambda reply: _exit(reply.json()),
    )


def models_call() -> Call[list[dict[str, Any]]]:
    """The models of the repository."""
    return Call("GET", path_of("v1", "models"), lambda reply: _list(reply, "models"), Port.CONTROL)


def remove_model_call(name: str) -> Call[Any]:
    """Takes a model out of the repository."""
    return control_call("DELETE", path_of("v1", "models", name))


def put_model_call(name: str, content_type: str, body: Body, is_dry_run: bool) -> Call[Any]:
    """Puts a model into the repository."""
    query = "?dry_run=true" if is_dry_run else ""
    return Call(
        method="PUT",
        path=path_of("v1", "models", name) + query,
        port=Port.CONTROL,
        headers={"Content-Type": content_type},
        body=body,
        read=_read_json,
    )


def events_call() -> Call[None]:
    """What happens from now on; the answer goes on until it is closed."""
    headers = {"Accept": "text/event-stream"}
    return Call("GET", path_of("v1", "events"), lambda reply: None, Port.CONTROL, headers)


def _read_json(reply: Reply) -> Any:
    return reply.json() if reply.body else None


def _list(reply: Reply, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = reply.json()[name]
    return found


def _exit(document: Mapping[str, Any]) -> ExitStatus:
    return ExitStatus(document["name"], document["threshold"], document["taken"])
