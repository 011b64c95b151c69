"""Each class name means one thing."""

import ast
from collections import defaultdict
from pathlib import Path

import holdfast

SOURCES = Path(holdfast.__file__).parent
MIRRORS = {SOURCES / "client/failures.py", SOURCES / "client/refusals.py"}
"""The errors of clients are named for the problems of REST, as are those that instances raise for them."""


def test_no_two_public_classes_have_the_same_name() -> None:
    modules: dict[str, list[str]] = defaultdict(list)
    for path in sorted({*SOURCES.rglob("*.py")} - MIRRORS):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules[node.name].append(str(path.relative_to(SOURCES)))
    assert {name: found for name, found in modules.items() if len(found) > 1} == {}
