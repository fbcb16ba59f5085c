"""The list of real models."""

import classic
import exports
import packages
import quantised
from files import Model


def models() -> list[Model]:
    """All of them, in the order that they are checked in."""
    found = [*packages.models(), *exports.models(), *classic.models(), *quantised.models()]
    names = [model.name for model in found]
    if len(set(names)) != len(names):
        raise RuntimeError("two models of the list have the same name")
    return found


def model(name: str) -> Model:
    (found,) = [model for model in models() if model.name == name]
    return found
