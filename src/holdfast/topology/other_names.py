"""What to write instead of a method that only PySpark or Kafka Streams has.

Streams and tables are not DataFrames. A user who writes `stream.groupBy("city")` gets an error that names `group_by`:

>>> from holdfast.topology.stream import Stream
>>> hint(Stream, "groupBy")
"A stream has no method 'groupBy'. Its name here is group_by(...)."
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from holdfast.errors import did_you_mean

_INSTEAD: Final[dict[str, str]] = {
    "agg": 'Write group_by("city").aggregate(n=hf.count()).store("counts").',
    "groupByKey": "Write group_by(), which groups by the stream's key.",
    "windowedBy": "Its name here is window(...).",
    "withWatermark": 'How late a record may be is the grace of a window: window(hf.tumbling("60s", grace="5s")).',
    "suppress": "A windowed table sends each window once, when it closes: table.final().",
    "dropDuplicates": "Keep the first record per key, group_by().aggregate(x=hf.first('x')), or use a processor.",
    "distinct": "Keep the first record per key, group_by().aggregate(x=hf.first('x')), or use a processor.",
    "union": "Its name here is merge(...).",
    "unionByName": "Its name here is merge(...).",
    "explode": "Its name here is flat_map(...).",
    "selectKey": "Its name here is key_by(...).",
    "mapValues": "Write with_column(...), select(...) or process(...).",
    "toTable": "A table of a changelog is app.table(df, name, key=...).",
    "orderBy": "Records are processed in the order of their event times; position= of app.stream() orders equal ones.",
    "sort": "Records are processed in the order of their event times; position= of app.stream() orders equal ones.",
    "limit": 'The first rows of a table by a column are table.top(3, by="points", name="top3").',
    "write": 'Send rows to a sink: table.sink(hf.files("folder/")).',
    "writeStream": 'Send rows to a sink: table.sink(hf.files("folder/")).',
    "foreachBatch": "Send rows to a function: table.sink(hf.foreach(function)).",
    "foreach": "Send rows to a function: table.sink(hf.foreach(function)).",
    "sink": 'Sinks take the rows of tables, joins and processors: group_by().count().store("counts").sink(...).',
    "to": 'Send rows to a sink: table.sink(hf.files("folder/")).',
    "store": 'Aggregate first: group_by().count().store("counts").',
    "top": 'Keep the aggregate in a store first: .store("totals").top(3, by="points", name="top3").',
    "map": "Write with_column(...), select(...), transform(...) or process(...).",
    "split": "Its name here is branch(...).",
    "peek": "Print the rows of a table: table.sink(hf.console()).",
    "leftJoin": 'Write join(other, how="left", name=...).',
    "outerJoin": 'Write join(other, how="outer", name=...).',
    "window": 'Group first: group_by().window(hf.tumbling("60s")).',
    "count": 'Write group_by().count().store("counts").',
    "late": "Only windowed tables and joins of streams have late records: group_by().window(...).",
    "final": "Only windowed tables have final rows: group_by().window(...).",
    "show": "Print the rows of a table: table.sink(hf.console()).",
    "collect": "A stream has no end. Read a table's store over REST, or collect its rows with sink(hf.memory()).",
    "toPandas": "A stream has no end. Read a table's store over REST, or collect its rows with sink(hf.memory()).",
}
"""What to use instead of methods that have no counterpart of a similar name."""

_AGGREGATES: Final = ("sum", "min", "max", "avg", "mean", "first", "last")
_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def hint(owner: type[Named], name: str) -> str:
    """The error for a method that a class doesn't have: what there is instead."""
    from pyspark.sql import DataFrame

    from holdfast.topology.stream import Stream

    missing = f"{owner.CALLED} has no method {name!r}."
    if name in owner.INSTEAD:
        return f"{missing} {owner.INSTEAD[name]}"
    here = _WORDS.sub("_", name).lower()
    here = "group_by" if here == "groupby" else here
    if here != name and hasattr(owner, here):
        return f"{missing} Its name here is {here}(...)."
    if name in _AGGREGATES and hasattr(owner, "aggregate"):
        return f'{missing} Write aggregate({name}=hf.{name}("column")).'
    if owner is not Stream and hasattr(owner, "to_stream") and hasattr(Stream, here):
        return f"{missing} Its rows are a stream too: to_stream().{here}(...)."
    if name in _INSTEAD:
        return f"{missing} {_INSTEAD[name]}"
    if owner is Stream and hasattr(DataFrame, name):
        return f"{missing} Any stateless step of PySpark is transform(lambda df: df.{name}(...))."
    return f"{owner.__name__!r} object has no attribute {name!r}. {did_you_mean(name, _methods(owner))}".strip()


def _methods(owner: type) -> list[str]:
    return [name for name in dir(owner) if not name.startswith("_")]


class Named:
    """The base of what users build an app of: a method that isn't there is an error with the one that is."""

    CALLED: ClassVar[str] = "This"
    """What users call such an object."""

    INSTEAD: ClassVar[Mapping[str, str]] = {}
    """What to do instead of methods that other objects have, where that depends on this one."""

    if not TYPE_CHECKING:  # a type checker reports missing methods itself

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
            if hasattr(type(self), name):
                return object.__getattribute__(self, name)  # a property that raised AttributeError: raises it again
            raise AttributeError(hint(type(self), name), name=name, obj=self)
