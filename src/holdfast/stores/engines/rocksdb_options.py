"""RocksDB's options as RocksDB itself wrote them down, and those it may not be opened with.

rocksdict's options can be set and not read. But RocksDB writes what it goes by into its folder each time it is opened,
so what a user's hook has set is looked up there. Most of it is the user's own business. Some options break what an
engine promises, most of them silently, and are refused.

Several write buffers a flush (`min_write_buffer_number_to_merge` of 2 and more) hang, in RocksDB itself: `flush()`
waits for ever, with one immutable buffer there and no flush pending (facebook/rocksdb#12094 and #13280). As its source
reads, a flush that begins by itself takes the buffers that are full, and takes back with them the wish that `flush()`
has just put down for one more; that one alone is fewer than are merged, so nobody flushes it. With rocksdict alone,
three families, one budget for their buffers, three buffers and two a flush it hung in the 15th round; here, with four,
in the 12th version. With one a flush no buffer is ever too few. Two buffers in all, one a flush, never hung: neither
so, nor in the engines' tests, nor in three databases that were written, flushed and saved at once.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

Options = Mapping[str, str]


@dataclass(frozen=True)
class Written:
    """What stands in an OPTIONS file: the database's options, and those of each family and of its tables."""

    database: Options
    families: Mapping[str, Options]
    tables: Mapping[str, Options]


def written(folder: Path) -> Written:
    """The options a database was last opened with."""
    newest = max(folder.glob("OPTIONS-*"), key=lambda path: int(path.name.partition("-")[2]))
    return parsed(newest.read_text())


def parsed(text: str) -> Written:
    """
    >>> parsed('[DBOptions]\\n  max_open_files=7\\n[CFOptions "scores"]\\n  num_levels=3\\n').families
    {'scores': {'num_levels': '3'}}
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
    return Written(
        sections.get(("DBOptions", ""), {}),
        {name: found for (kind, name), found in sections.items() if kind == "CFOptions"},
        {name: found for (kind, name), found in sections.items() if kind == "TableOptions/BlockBasedTable"},
    )


@dataclass(frozen=True)
class Refused:
    """An option, the values it may not have, and why."""

    option: str
    is_refused: Callable[[str], bool]
    why: str


_FAMILY = (
    Refused(
        "min_write_buffer_number_to_merge",
        lambda value: int(value) > 1,
        "a flush that is asked for while another begins would wait for ever (facebook/rocksdb#12094 and #13280)",
    ),
    Refused("compaction_style", lambda value: value.endswith("FIFO"), "it throws away old entries by itself"),
    Refused("inplace_update_support", lambda value: value == "true", "it changes what views are reading"),
    Refused("prefix_extractor", lambda value: value != "nullptr", "scans go across prefixes and would miss entries"),
)
_DATABASE = (Refused("unordered_write", lambda value: value == "true", "views would see half of a version"),)


def refusals(found: Written, stores: Iterable[str]) -> list[str]:
    """What of these options an engine can't work with, in words; of the families only those that are stores.

    >>> bad = parsed('[DBOptions]\\n  unordered_write=true\\n[CFOptions "scores"]\\n  inplace_update_support=true\\n')
    >>> refusals(bad, ["scores"])[0]
    "inplace_update_support=true of store 'scores': it changes what views are reading"
    """
    places = [(f" of store {name!r}", found.families.get(name, {}), _FAMILY) for name in stores]
    return [
        f"{rule.option}={options[rule.option]}{place}: {rule.why}"
        for place, options, rules in [*places, ("", found.database, _DATABASE)]
        for rule in rules
        if rule.option in options and rule.is_refused(options[rule.option])
    ]
