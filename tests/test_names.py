"""Each class name means one thing."""

import ast
from collections import defaultdict
from pathlib import Path

import holdfast
from holdfast.client import errors

SOURCES = Path(holdfast.__file__).parent
MIRRORS = {SOURCES / "client/failures.py", SOURCES / "client/refusals.py"}
"""The errors of clients are named for the problems of REST, as are those that instances raise for them."""
RAISED_BY_INSTANCES = ("errors.py", "instance/", "query/", "sql/")


def test_no_two_public_classes_have_the_same_name() -> None:
    assert {name: found for name, found in public_classes().items() if len(found) > 1} == {}


def test_only_what_instances_raise_has_the_name_of_a_clients_error() -> None:
    of_clients = [*errors.__all__]
    assert of_clients
    elsewhere = {name: found for name, found in public_classes().items() if name in of_clients}
    assert all(path.startswith(RAISED_BY_INSTANCES) for found in elsewhere.values() for path in found), elsewhere


def public_classes() -> dict[str, list[str]]:
    """The modules that have a class of each name, without those of `MIRRORS`."""
    modules: dict[str, list[str]] = defaultdict(list)
    for path in sorted({*SOURCES.rglob("*.py")} - MIRRORS):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules[node.name].append(str(path.relative_to(SOURCES)))
    return modules
