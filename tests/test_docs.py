"""The documentation is checked: the settings page is up to date, examples run, links have targets."""

import ast
import doctest
import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast.cli import app
from holdfast.settings.load import load
from holdfast.settings.model import all_settings
from scripts.settings_page import page

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^```(\w*)[ \t]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
IS_PROGRAM = '"games/"'
"""Blocks that read this folder are whole programs."""
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)#\s]+)(?:#[^)]*)?\)")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{name_of(self.page)}:{self.line}"


def blocks(language: str) -> list[Block]:
    return list(_blocks(language))


def _blocks(language: str) -> Iterator[Block]:
    for path in PAGES:
        text = path.read_text()
        for match in FENCE.finditer(text):
            if match[1] == language:
                yield Block(path, text.count("\n", 0, match.start()) + 2, match[1], match[2])


def test_the_configuration_page_is_up_to_date() -> None:
    assert (ROOT / "docs/configuration.md").read_text() == page(), "run `make docs`"


@pytest.mark.parametrize("name", all_settings())
def test_every_setting_has_a_meaning_and_its_name_in_kafka_streams(name: str) -> None:
    setting = all_settings()[name]
    assert setting.meaning.endswith(".")
    assert setting.kafka.startswith(("`", "none: "))


@pytest.mark.parametrize("block", blocks("toml"), ids=str)
def test_settings_files_in_the_documentation_are_accepted(block: Block, tmp_path: Path) -> None:
    assert tomllib.loads(block.text)
    file = tmp_path / "holdfast.toml"
    file.write_text(block.text)
    assert load(file=file).origins.keys() == all_settings().keys()


@pytest.mark.parametrize("block", blocks("python"), ids=str)
def test_python_in_the_documentation_runs(block: Block) -> None:
    """Blocks with prompts run as doctests. Whole programs run in test_programs.py. Others quote a file of examples/."""
    if ">>>" in block.text:
        test = doctest.DocTestParser().get_doctest(block.text, {}, str(block), str(block.page), block.line)
        assert doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test).failed == 0
    elif match := re.match(r"# (examples/\S+\.py)\n", block.text):
        shown = block.text.removeprefix(match[0]).rstrip()
        assert shown in (ROOT / match[1]).read_text(), f"{block} differs from {match[1]}"
    elif IS_PROGRAM not in block.text:
        assert block.page.name == "design.md", f"{block} doesn't run: give it prompts, or make it a program"
        ast.parse(block.text)


SIZES = [block for block in blocks("console") if block.text.startswith("$ holdfast size")]


@pytest.mark.parametrize("block", SIZES, ids=str)
def test_holdfast_size_prints_what_the_documentation_shows(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    command, *shown = block.text.splitlines()
    printed = CliRunner().invoke(app, shlex.split(command.removeprefix("$ holdfast "))).output
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    assert [line for line in shown if not any(each.startswith(" ".join(line.split())) for each in lines)] == []


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_links_within_the_project_have_targets(path: Path) -> None:
    inside = [target for target in LINK.findall(path.read_text()) if "://" not in target]
    assert [target for target in inside if not (path.parent / target).exists()] == []


DIFFERS = re.compile(r"(unlike|differ\w*\s+from|other\w*\s+than|not\s+as)\s+(in\s+)?Kafka\s+Streams", re.IGNORECASE)


def test_a_page_that_speaks_of_a_difference_from_kafka_streams_links_to_the_list() -> None:
    """The list says that everything else is the same, so what only another page says would be wrong there."""
    pages = [*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md")]
    paragraphs = [(name_of(page), part) for page in pages for part in re.split(r"\n\s*\n", page.read_text())]
    speaking = [each for each in paragraphs if DIFFERS.search(re.sub(r"[\[\]]", "", each[1]))]
    assert speaking, "the pattern finds them"
    listed = {"docs/differences.md", "CHANGELOG.md"}
    assert [each for each in speaking if each[0] not in listed and "differences.md" not in each[1]] == []


LISTED = {
    "late records of stream joins": "docs/joins.md",
    "late records of sliding windows": "docs/windows.md",
    "final rows and retention": "docs/windows.md",
    "retention of sessions": "docs/stores.md",
    "retention of zero": "docs/stores.md",
    "tables with `timestamp=`": "docs/guide.md",
    "windowed tables in joins": "docs/joins.md",
    "null arrays": "docs/guide.md",
    "punctuators that raise": "docs/processors.md",
    "iterators": "docs/stores.md",
    "order of several results": "docs/stores.md",
}
"""Differences that pages explain, and where."""


@pytest.mark.parametrize(("difference", "page"), LISTED.items())
def test_the_differences_of_other_pages_are_in_the_list(difference: str, page: str) -> None:
    rows = [line for line in (ROOT / "docs/differences.md").read_text().splitlines() if line.startswith("| **")]
    (row,) = [each for each in rows if each.startswith(f"| **{difference}**")]
    assert len([cell for cell in row.strip("|").split("|") if cell.strip()]) == 4, "with both sides and the reason"
    assert "differences.md" in (ROOT / page).read_text(), "the page links to the list"


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_lines_of_text_have_up_to_120_characters(path: Path) -> None:
    text = FENCE.sub("", path.read_text())
    assert [line for line in text.splitlines() if len(line) > 120 and not line.startswith("|")] == []


def headings(page: Path) -> set[str]:
    """The anchors that GitHub gives to a page's headings."""
    titles = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_contributing_has_every_part_in_the_order_in_which_they_import() -> None:
    """A part is a module or a folder of the package; the order is the one that `lint-imports` checks."""
    table = (ROOT / "CONTRIBUTING.md").read_text().split("| part | what it is |\n|---|---|\n")[1].split("\n\n")[0]
    rows = [[*re.findall(r"`(\w+)(?:\.py|/)`", row.split(" | ")[0])] for row in table.splitlines()]
    (contract,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    assert rows == [sorted(re.findall(r"\w+", layer)) for layer in contract["layers"]]
    assert sorted(part for row in rows for part in row) == sorted(parts_of(ROOT / "src/holdfast"))


def test_the_tree_in_the_design_has_every_part() -> None:
    tree = (ROOT / "docs/design.md").read_text().split("## Where code lives\n\n```\n")[1].split("\ntests/ ")[0]
    named = {*re.findall(r"(?<![\w/])([a-z_]+(?:\.py|/))", tree.removeprefix("src/holdfast/"))}
    package = ROOT / "src/holdfast"
    folders = {f"{each.parent.name}/" for each in [*package.glob("*/*.py"), *package.glob("stores/*/*.py")]}
    assert named == folders | {each.name for each in package.glob("*.py")} - {"__init__.py"}


def parts_of(folder: Path) -> list[str]:
    """Its modules and the folders that have some."""
    modules = [each.stem for each in folder.glob("*.py") if each.name != "__init__.py"]
    return modules + [each.name for each in folder.iterdir() if next(each.glob("*.py"), None) is not None]


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_links_to_headings_have_targets(path: Path) -> None:
    found = re.findall(r"\]\(([^)#\s:]*)#([^)]+)\)", path.read_text())
    places = [(path.parent / target if target else path, anchor) for target, anchor in found]
    assert [(page.name, anchor) for page, anchor in places if anchor not in headings(page)] == []


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_make_targets_in_the_documentation_exist(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = re.findall(r"(?:`|^\$ )make ([a-z-]+)", path.read_text(), re.MULTILINE)
    assert [command for command in commands if command not in targets] == []


def test_the_lock_file_has_only_exact_versions() -> None:
    line = re.compile(r"[a-z0-9.\-]+==[0-9][\w.+]*( ; [\w\s'.<>=!()]+)?")
    assert [text for text in (ROOT / "requirements.lock").read_text().splitlines() if not line.fullmatch(text)] == []


def test_the_lock_file_has_every_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [*project["project"]["dependencies"], *project["dependency-groups"]["dev"]]
    locked = set(re.findall(r"^([a-z0-9.\-]+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    assert [name for name in (re.split(r"[<>=\[ ]", text)[0] for text in wanted) if name not in locked] == []


def test_the_glossary_defines_each_term_once_in_alphabetical_order() -> None:
    rows = re.findall(r"^\| \*\*(.+?)\*\* \| (.+) \| (.+) \|$", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE)
    terms = [term.casefold() for term, _, _ in rows]
    assert len(terms) > 80 and terms == sorted(set(terms))
