"""Tables in memory for the tests of workers, which note what was read of them."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa

from holdfast.errors import HoldfastError
from holdfast.sql.messages import INDEXED, StoreScan


@dataclass
class MemoryTables:
    """Tables whose first column is the key."""

    tables: dict[str, pa.Table]
    error: HoldfastError | None = None
    scans: list[StoreScan] = field(default_factory=list)
    opened: list[list[str]] = field(default_factory=list)
    open_now: int = 0

    def schemas(self) -> dict[str, pa.Schema]:
        return {
            name: table.schema.with_metadata({INDEXED: table.column_names[0].encode()})
            for name, table in self.tables.items()
        }

    @contextmanager
    def open(self, names: Sequence[str]) -> Iterator["MemoryTables"]:
        self.opened.append(list(names))
        self.open_now += 1
        try:
            yield self
        finally:
            self.open_now -= 1

    def schema(self, scan: StoreScan) -> pa.Schema:
        return self.tables[scan.table].select(scan.columns).schema

    def rows(self, scan: StoreScan) -> Generator[pa.RecordBatch, None, None]:
        self.scans.append(scan)
        table = self.tables[scan.table]
        for condition in scan.conditions:
            assert condition.op == "=", condition
            table = table.filter(pa.compute.equal(table[condition.column], condition.values[0]))
        batches = table.select(scan.columns).to_batches(1_000)
        yield from batches[:1]
        if self.error is not None:
            raise self.error
        yield from batches[1:]
