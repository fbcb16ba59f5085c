"""Requests leave at exits, whose thresholds can be read and set."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import tessera_serve
from tessera_serve import InvalidRequest, NotFound, Task

CERTAIN = np.array([[100, 0, 0]], np.float32)
UNCERTAIN = np.array([[1, 1, 1]], np.float32)


@pytest.fixture
def classifier(server: tessera_serve.Server) -> Iterator[Task]:
    """A task whose exit has the threshold 0.1, before and after."""
    yield server["classifier"]
    server["classifier"].set_threshold("early", 0.1)


def test_an_answer_says_which_exit_was_taken(classifier: Task) -> None:
    early = classifier.infer(CERTAIN)
    assert early.exit == "early"
    np.testing.assert_array_equal(early.output, 2 * CERTAIN)
    late = classifier.infer(UNCERTAIN)
    assert late.exit is None
    np.testing.assert_array_equal(late.output, -2 * UNCERTAIN)


def test_rows_leave_where_they_are_certain(classifier: Task) -> None:
    response = classifier.infer(np.concatenate([CERTAIN, UNCERTAIN, CERTAIN]))
    assert response.exits == ("early", None, "early")
    assert response.exit is None
    np.testing.assert_array_equal(response.output[1:2], -2 * UNCERTAIN)


def test_a_threshold_is_set_by_assigning_it(classifier: Task) -> None:
    exits = classifier.exits
    assert list(exits) == ["early"]
    assert exits["early"].threshold == pytest.approx(0.1)
    exits["early"].threshold = 1.0
    assert exits["early"].threshold == 1.0
    assert classifier.infer(UNCERTAIN).exit == "early"
    assert classifier.exits["early"].threshold == 1.0


def test_exits_count_the_rows_that_left(classifier: Task) -> None:
    before = classifier.exits["early"].taken
    classifier(np.concatenate([CERTAIN, CERTAIN]))
    assert classifier.exits["early"].taken == before + 2


def test_what_is_wrong_with_an_exit_is_told(classifier: Task) -> None:
    with pytest.raises(NotFound, match='no exit "late", expected one of: early'):
        print(classifier.exits["late"])
    assert "late" not in classifier.exits
    with pytest.raises(NotFound, match="late"):
        classifier.set_threshold("late", 0.5)
    with pytest.raises(InvalidRequest, match="threshold"):
        classifier.exits["early"].threshold = 2.0


def test_a_task_without_exits_has_none(server: tessera_serve.Server) -> None:
    assert dict(server["pair"].exits) == {}
