"""Public names: they exist, and the documentation and examples use no others."""

import ast
import doctest
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import holdfast
from tests.test_docs import PAGES, ROOT, Block, blocks, name_of

MODULES = (
    "holdfast",
    "holdfast.assignors",
    "holdfast.client",
    "holdfast.client.errors",
    "holdfast.clock",
    "holdfast.codecs",
    "holdfast.engines",
    "holdfast.kinds",
    "holdfast.testing",
)
"""The public modules. Everything else may change without notice."""

UNCHECKED = {"docs/design.md", *(name_of(page) for page in PAGES if "decisions" in page.parts)}
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))


@pytest.mark.parametrize("name", MODULES)
def test_every_public_name_exists(name: str) -> None:
    module = import_module(name)
    assert all(getattr(module, each) is not None for each in module.__all__)
    assert len(set(module.__all__)) == len(module.__all__)


def test_the_guide_lists_the_public_modules() -> None:
    text = (ROOT / "docs/guide.md").read_text().partition("\n## What you can import\n")[2].partition("\n\n## ")[0]
    assert sorted(re.findall(r"^\| `(holdfast[a-z.]*)` \|", text, re.MULTILINE)) == sorted(MODULES)
    assert "TestDriver" in text


def test_the_public_names_are_those_exported() -> None:
    code = ast.parse((ROOT / "src/holdfast/__init__.py").read_text())
    (for_type_checkers,) = (node for node in code.body if isinstance(node, ast.If))
    imports = [node for node in ast.walk(for_type_checkers) if isinstance(node, ast.ImportFrom)]
    assert {name.name: node.module for node in imports for name in node.names} == holdfast._HOME_OF
    assert set(dir(holdfast)) == set(holdfast.__all__)


@pytest.mark.parametrize("name", MODULES)
def test_every_public_name_is_in_the_documentation(name: str) -> None:
    text = "".join(page.read_text() for page in PAGES if name_of(page) not in UNCHECKED)
    prefix = r"hf\." if name == "holdfast" else r"\b"
    assert [each for each in import_module(name).__all__ if not re.search(rf"{prefix}{each}\b", text)] == []


def private_names(code: str) -> Iterator[str]:
    """Holdfast's names in Python code that are not public.

    >>> list(private_names("import holdfast as hf\\nfrom holdfast.stores.spec import StoreSpec\\nhf.count(), hf.no()"))
    ['holdfast.stores.spec.StoreSpec', 'holdfast.no']
    """
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] == "holdfast":
                names = [(module, each.name) for each in node.names]
            case ast.Import():
                names = [(each.name, "") for each in node.names if each.name.startswith("holdfast.")]
            case ast.Attribute(value=ast.Name(id="hf" | "holdfast"), attr=attribute):
                names = [("holdfast", attribute)]
            case _:
                continue
        for module, name in names:
            if module not in MODULES or name not in ("", *import_module(module).__all__):
                yield f"{module}.{name}"


@pytest.mark.parametrize(
    "block", [block for block in blocks("python") if name_of(block.page) not in UNCHECKED], ids=str
)
def test_the_documentation_uses_only_public_names(block: Block) -> None:
    text = block.text
    examples = doctest.DocTestParser().get_examples(text)
    assert list(private_names("".join(example.source for example in examples) if examples else text)) == []


@pytest.mark.parametrize("path", EXAMPLES, ids=name_of)
def test_the_examples_use_only_public_names(path: Path) -> None:
    assert list(private_names(path.read_text())) == []


def test_an_instance_loads_neither_spark_nor_pandas() -> None:
    code = (
        "import sys; from holdfast.lean import leave_pandas_out; leave_pandas_out(); "
        "import holdfast.serving, holdfast.kinds, pyarrow; "
        "pyarrow.array([1]); print(sorted({'pyspark', 'pandas'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
