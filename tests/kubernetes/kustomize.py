"""As much of kustomize as deploy/kubernetes uses: resources, namespace, replicas, and patches that
are lists of operations (RFC 6902). Anything else in a kustomization is an error."""

import copy
import pathlib

import yaml

KNOWN_FIELDS = {"apiVersion", "kind", "namespace", "resources", "replicas", "patches"}
# What belongs to no namespace, of all that is here.
WITHOUT_NAMESPACE = {"Namespace"}


def render(folder: pathlib.Path) -> list[dict]:
    """The objects of a folder with a kustomization."""
    with open(folder / "kustomization.yaml") as file:
        kustomization = yaml.safe_load(file)
    unknown = set(kustomization) - KNOWN_FIELDS
    if unknown:
        raise ValueError(f"{folder}: this renderer does not know {sorted(unknown)}")
    objects = []
    for resource in kustomization.get("resources", []):
        path = folder / resource
        if path.is_dir():
            objects += render(path)
        else:
            with open(path) as file:
                objects += [found for found in yaml.safe_load_all(file) if found]
    for patch in kustomization.get("patches", []):
        apply_patch(folder, patch, objects)
    for replicas in kustomization.get("replicas", []):
        named = [found for found in objects if found["metadata"]["name"] == replicas["name"]]
        scaled = [found for found in named if "replicas" in found.get("spec", {})]
        if not scaled:
            raise ValueError(f"{folder}: replicas of {replicas['name']}: there is no such object")
        for found in scaled:
            found["spec"]["replicas"] = replicas["count"]
    if "namespace" in kustomization:
        for found in objects:
            if found["kind"] not in WITHOUT_NAMESPACE:
                found["metadata"]["namespace"] = kustomization["namespace"]
    return objects


def apply_patch(folder: pathlib.Path, patch: dict, objects: list[dict]) -> None:
    """Carries the operations of a patch out on the object that it is for."""
    if set(patch) != {"target", "path"} or set(patch["target"]) != {"kind", "name"}:
        raise ValueError(f"{folder}: this renderer knows patches with target and path alone")
    kind, name = patch["target"]["kind"], patch["target"]["name"]
    targets = [o for o in objects if o["kind"] == kind and o["metadata"]["name"] == name]
    if len(targets) != 1:
        raise ValueError(f"{folder}: {patch['path']}: there is no {kind} {name}")
    with open(folder / patch["path"]) as file:
        operations = yaml.safe_load(file)
    for operation in operations:
        apply_operation(targets[0], operation, f"{folder}/{patch['path']}")


def apply_operation(document: dict, operation: dict, where: str) -> None:
    """One operation of RFC 6902."""
    *parents, last = [
        part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]
    ]
    place = document
    for part in parents:
        place = place[int(part)] if isinstance(place, list) else place[part]
    value = copy.deepcopy(operation.get("value"))
    match operation["op"], place:
        case "add", list():
            place.insert(len(place) if last == "-" else int(last), value)
        case "add", dict():
            place[last] = value
        case "replace", list():
            place[int(last)] = value
        case "replace", dict() if last in place:
            place[last] = value
        case "remove", list():
            del place[int(last)]
        case "remove", dict():
            del place[last]
        case _:
            raise ValueError(f"{where}: {operation['op']} {operation['path']} can't be done")
