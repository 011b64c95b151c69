"""RocksDB's options as RocksDB itself recorded them, and the options an engine rejects.

rocksdict's options can be set but not read. RocksDB writes its options into its folder each time it is opened, so the
values a user's hook has set are read from there. Some options break what an engine promises, most of them without an
error, and are rejected.

`min_write_buffer_number_to_merge` of 2 and more makes RocksDB hang: `flush()` waits forever, with one immutable buffer
and no flush pending (facebook/rocksdb#12094 and #13280). According to its source, an automatic flush takes the full
buffers, and with them cancels the request of a concurrent `flush()` for one more buffer. That buffer alone is fewer
than the number to merge, so it is never flushed. rocksdict alone, with three families, hung in the 15th round; here it
hung in the 12th version. With a value of 1 it never hung, also not while three databases were written and flushed.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

Sections = Mapping[tuple[str, str], Mapping[str, str]]
"""The sections of an OPTIONS file by kind and family; the family is empty for that of the database."""

DATABASE = ("DBOptions", "")


def written_options(folder: Path) -> Sections:
    """The options a database was last opened with."""
    newest = max(folder.glob("OPTIONS-*"), key=lambda path: int(path.name.partition("-")[2]))
    return parse_options(newest.read_text())


def parse_options(text: str) -> Sections:
    """
    >>> parse_options('[DBOptions]\\n  max_open_files=7\\n[CFOptions "scores"]\\n  num_levels=3\\n')
    {('DBOptions', ''): {'max_open_files': '7'}, ('CFOptions', 'scores'): {'num_levels': '3'}}
    """
    sections: dict[tuple[str, str], dict[str, str]] = {}
    options: dict[str, str] = {}
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            kind, _, name = line.strip("[]").partition(" ")
            options = sections.setdefault((kind, name.strip('"')), {})
        elif "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            options[key] = value
    return sections


@dataclass(frozen=True)
class Rule:
    """An option, the values it may not have, and why."""

    option: str
    rejects: Callable[[str], bool]
    why: str


_FAMILY = (
    Rule(
        "min_write_buffer_number_to_merge",
        lambda value: int(value) > 1,
        "a flush requested while another begins would wait forever (facebook/rocksdb#12094 and #13280)",
    ),
    Rule("compaction_style", lambda value: value.endswith("FIFO"), "it deletes old entries by itself"),
    Rule("inplace_update_support", lambda value: value == "true", "it changes entries that views are reading"),
    Rule("prefix_extractor", lambda value: value != "nullptr", "scans go across prefixes and would miss entries"),
)
_DATABASE = (Rule("unordered_write", lambda value: value == "true", "views would see half of a version"),)


def rejected_options(found: Sections, stores: Iterable[str]) -> list[str]:
    """The options of the database and of these stores that an engine rejects, and why.

    >>> bad = parse_options('[CFOptions "scores"]\\n  inplace_update_support=true\\n')
    >>> rejected_options(bad, ["scores"])
    ["inplace_update_support=true of store 'scores': it changes entries that views are reading"]
    """
    places = [(f" of store {name!r}", found.get(("CFOptions", name), {}), _FAMILY) for name in stores]
    return [
        f"{rule.option}={options[rule.option]}{place}: {rule.why}"
        for place, options, rules in [*places, ("", found.get(DATABASE, {}), _DATABASE)]
        for rule in rules
        if rule.option in options and rule.rejects(options[rule.option])
    ]
