"""The section `sql`: what a SQL statement may use."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from holdfast.settings.declare import Between, InKafkaStreams, Section
from holdfast.settings.units import Duration, Size

_NONE = InKafkaStreams("none: ksqlDB is another server")


@dataclass(frozen=True, kw_only=True, repr=False)
class SqlSettings(Section):
    """What a SQL statement may use on an instance. Statements need DuckDB: `holdfast[sql]`."""

    section: ClassVar[str] = "sql"

    memory: Annotated[
        Size,
        "How many bytes a statement may use, in a process of its own beside `memory.limit` of the instance.",
        _NONE,
        Between(16 << 20, 1 << 40),
    ] = Size("512MiB")
    time_limit: Annotated[
        Duration,
        "How long a statement may run. Then its process is ended. `rest.timeout`, which should be longer, ends it too.",
        _NONE,
        Between("100ms", "1h"),
    ] = Duration("25s")
    rows: Annotated[
        int,
        "How many rows a result may have. Further ones are left out, and the answer says so.",
        _NONE,
        Between(1, 10**9),
    ] = 100_000
    statements: Annotated[
        int, "How many statements an instance runs at once. Others are asked to come back.", _NONE, Between(1, 1000)
    ] = 2
