"""What an app consists of: sources, sub-topologies that read them, and sinks that take their outputs.

A sub-topology is one run of operators between two shuffles: it reads a stream by a key, keeps stores that are
partitioned by that key, and has outputs. Its operator defines what it does with a record; everything else here is the
same for all operators.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

from holdfast.errors import TopologyError
from holdfast.stores.access import Now
from holdfast.stores.formats.types import Schema
from holdfast.stores.options import ROCKSDB, known_engine
from holdfast.stores.spec import StoreSpec, check_name
from holdfast.topology.endpoints import OwnEndpoint
from holdfast.topology.outputs import DeadLetters, Output, default_sink_name
from holdfast.topology.plain_frames import PlainFrame, spark_frame
from holdfast.topology.processor import OnError, two_stores
from holdfast.topology.sink import Sink, takes
from holdfast.topology.steps import PlainStep
from holdfast.words import TaskId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from holdfast.stores.kinds.base import Store
    from holdfast.topology.parsing import Parse
    from holdfast.topology.stream import Stream

FIRST_SOURCE = "main"
"""The default name of a source."""


StatelessStep = Callable[["DataFrame"], "DataFrame"]
"""A stateless step of a stream: plain PySpark, from DataFrame to DataFrame."""


@dataclass(frozen=True, eq=False)
class Source:
    """A streaming DataFrame with a name, under which commits keep its clock."""

    name: str
    frame: DataFrame
    whole_dead_letters: bool = False
    """Whether a dead letter has all columns of its record. Otherwise it has those that the topology uses."""
    given: DataFrame | None = None
    """What the user gave, where `frame` was read from its texts."""
    parse: Parse | None = None
    """How it was read."""


@dataclass(frozen=True, eq=False)
class StaticRows:
    """A static DataFrame with the name of its global table. It is read once per start."""

    name: str
    frame: DataFrame


@dataclass(frozen=True)
class OutputOf:
    """An output of a sub-topology, which another sub-topology of the same version reads."""

    subtopology: str
    name: str


@dataclass(frozen=True, eq=False)
class Branch:
    """A source or an output with the stateless steps that are applied to its records. A merged stream has several."""

    origin: Source | OutputOf | StaticRows
    frame: DataFrame
    """The columns and types after the steps."""
    steps: tuple[StatelessStep, ...] = ()

    def after(self, step: StatelessStep) -> Branch:
        """The branch with one more step."""
        return Branch(self.origin, after_step(self.frame, step), (*self.steps, step))


def after_step(frame: DataFrame, step: StatelessStep) -> DataFrame:
    """The columns and types after a step. Needs no Spark where neither the frame nor the step does."""
    if isinstance(frame, PlainFrame) and isinstance(step, PlainStep):
        return cast("DataFrame", step.plain(frame))
    return step(spark_frame(frame))


class Operator(ABC):
    """What a sub-topology does with its records. `pipeline.planners` knows how each operator runs on Spark.

    What has a default here is so for most operators. Nobody else asks for an operator's class.
    """

    keeps_key: ClassVar[bool] = False
    """Whether its output's rows have the key of its records, so that they are in the partition of the task."""
    beside_tables: ClassVar[bool] = False
    """Whether its tasks can run right after those of its `tables`, since they read their own partition."""
    only_with_rows: ClassVar[bool] = False
    """Whether its tasks never run in a version without rows for them."""
    of_source: ClassVar[bool] = False
    """Whether it was added with a source, and not by the user."""

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables of other sub-topologies that its tasks read, as they are after this version's changes."""
        return ()

    @abstractmethod
    def outputs(self, subtopology: SubTopology) -> tuple[Output, ...]:
        """The outputs that sinks can take."""

    @abstractmethod
    def lines(self, subtopology: SubTopology) -> Iterator[str]:
        """The operator as `app.describe()` shows it."""

    def declared(self, store: str) -> Store[Any, Any] | None:
        """A store as the user has declared it; None if the operator has made it."""
        return None

    def next_due(self, before: Now, event: int | None) -> int | None:
        """When its tasks have to run by the wall clock, with or without records; None: only with records.

        `before` are the clocks that the newest version was computed with, `event` is its event clock.
        """
        return None


@dataclass(frozen=True)
class SubTopology:
    """A stream, the stores that are kept from it, and the operator that does so."""

    name: str
    number: int
    """Its tasks are `<number>_<partition>`. Until the app starts, it is the position in the order of declaration."""
    stream: Stream
    key: Schema
    """Its records are shuffled and its stores partitioned by this key."""
    stores: tuple[StoreSpec, ...]
    operator: Operator

    @property
    def outputs(self) -> tuple[Output, ...]:
        return self.operator.outputs(self)

    def partitions(self, of_app: int) -> int:
        """How many partitions it has in an app with this many: a global table has one."""
        return max((store.partitions(of_app) for store in self.stores), default=of_app)

    def tasks(self, of_app: int) -> list[TaskId]:
        return [TaskId(self.number, partition) for partition in range(self.partitions(of_app))]


@dataclass(frozen=True)
class SinkNode:
    """A sink, the output it takes, and the name under which the log keeps its position."""

    name: str
    source: str
    sink: Sink


class Topology:
    """What an app consists of so far. Its start turns this into tasks, stores and sinks."""

    def __init__(self, engine: str = ROCKSDB, on_error: OnError = "fail") -> None:
        self.engine = known_engine(engine, "the setting state.engine")
        self.on_error = on_error
        self.sources: list[Source] = []
        self.subtopologies: list[SubTopology] = []
        self.sinks: list[SinkNode] = []
        self.endpoints: list[OwnEndpoint] = []
        self.is_numbered = False
        """Whether the sub-topologies have the numbers of the app's file."""

    @property
    def stores(self) -> tuple[StoreSpec, ...]:
        return tuple(store for each in self.subtopologies for store in each.stores)

    @property
    def outputs(self) -> dict[str, Output]:
        """The outputs that sinks can take, by name."""
        found: tuple[Output, ...] = (DeadLetters(), *(output for each in self.subtopologies for output in each.outputs))
        return {output.name: output for output in found}

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to run but what sources have of themselves."""
        return all(each.operator.of_source for each in self.subtopologies)

    @property
    def used_sources(self) -> list[str]:
        """The sources that are read, in the order of declaration."""
        used = {branch.origin for each in self.subtopologies for branch in each.stream.branches}
        return [source.name for source in self.sources if source in used]

    def check_real_sources(self) -> None:
        """Raises if a source is a test's, from which Spark can't read."""
        for source in self.sources:
            if isinstance(source.frame, PlainFrame):
                raise TopologyError(
                    f"The source {source.name!r} is made with records(...), which has columns and no records: a "
                    "TestDriver gives it some, and a start can't. Give the app a streaming DataFrame, such as "
                    "spark.readStream.schema(...).json(...), or test it: TestDriver(app)."
                )

    @property
    def timed_sources(self) -> list[str]:
        """The sources whose event times are used, in the order of declaration."""
        used = {
            branch.origin for each in self.subtopologies if each.stream.timestamp for branch in each.stream.branches
        }
        return [source.name for source in self.sources if source in used]

    def subtopology(self, name: str) -> SubTopology:
        return next(each for each in self.subtopologies if each.name == name)

    def source_of(self, frame: DataFrame, parse: Parse | None = None) -> Source | None:
        """The source of a user's DataFrame, read in this way; None if there is none."""
        return next(
            (each for each in self.sources if (each.given or each.frame) is frame and each.parse == parse), None
        )

    def add_source(
        self,
        frame: DataFrame,
        name: str | None,
        whole_dead_letters: bool = False,
        parse: Parse | None = None,
    ) -> Source:
        """The source of this DataFrame, added if it is new."""
        known = self.source_of(frame, parse)
        if known is None:
            if name is None and self.sources:
                raise TopologyError(
                    f"app.stream(): the app has the source {self.sources[0].name!r} already, and this is another "
                    "DataFrame. Name it: app.stream(df, name='...'). The log keeps its clock under that name."
                )
            read = (frame, None) if parse is None else (parse.parsed(frame), frame)
            known = Source(name or FIRST_SOURCE, read[0], whole_dead_letters, read[1], parse)
            check_name(known.name)
            if any(source.name == known.name for source in self.sources):
                raise TopologyError(
                    f"app.stream(name={known.name!r}): another DataFrame has this name. Give each source its own."
                )
            self.sources.append(known)
        elif name not in (None, known.name):
            raise TopologyError(
                f"app.stream(name={name!r}): this DataFrame is the source {known.name!r} already, and a source has one "
                "name. Leave name= out, or use the same name."
            )
        return known

    def check_free(self, name: str, stores: tuple[StoreSpec, ...], rename: str) -> None:
        """Raises for a sub-topology whose name or stores are in use. `rename` is the next step in the message."""
        check_name(name)
        twice = {store.name for store in self.stores} & {store.name for store in stores}
        if name not in twice and name in {*self.outputs, *(each.name for each in self.subtopologies)}:
            raise TopologyError(f"There are two outputs named {name!r}. {rename}")
        if twice:
            raise two_stores(min(twice))

    def add(self, name: str, stream: Stream, key: Schema, stores: tuple[StoreSpec, ...], operator: Operator) -> None:
        """Adds a sub-topology whose name and stores were checked."""
        self.subtopologies.append(SubTopology(name, len(self.subtopologies), stream, key, stores, operator))

    def replace(self, changed: SubTopology) -> None:
        """Replaces the sub-topology of this name, before the app starts."""
        self.subtopologies = [changed if each.name == changed.name else each for each in self.subtopologies]

    def change_store(self, name: str, change: Callable[[StoreSpec], StoreSpec]) -> None:
        """Changes the store that has the name of its sub-topology, before the app starts."""
        self._check_not_started(name)
        found = self.subtopology(name)
        stores = tuple(change(store) if store.name == name else store for store in found.stores)
        self.replace(replace(found, stores=stores))

    def change_operator(self, name: str, change: Callable[[Operator], Operator]) -> None:
        """Changes the operator of a sub-topology, before the app starts."""
        self._check_not_started(name)
        self.subtopologies = [
            replace(each, operator=change(each.operator)) if each.name == name else each for each in self.subtopologies
        ]

    def _check_not_started(self, name: str) -> None:
        if self.is_numbered:
            raise TopologyError(f"{name!r} can't be changed: the app has been started. Do it before app.run().")

    def with_sinks(self, sinks: Sequence[SinkNode]) -> Topology:
        """A copy with these sinks instead of its own. What happens to the copy doesn't change this one."""
        copied = copy(self)
        copied.sinks, copied.sources, copied.endpoints = [*sinks], [*self.sources], [*self.endpoints]
        copied.subtopologies = [
            replace(each, stream=replace(each.stream, topology=copied)) for each in self.subtopologies
        ]
        return copied

    def adopt(self, numbers: Mapping[str, int], known: Callable[[StoreSpec], StoreSpec]) -> None:
        """Takes over each sub-topology's number and each store's recorded spec from the log."""
        self.subtopologies = [
            replace(each, number=numbers[each.name], stores=tuple(known(store) for store in each.stores))
            for each in self.subtopologies
        ]
        self.is_numbered = True

    def is_read(self, output: str) -> bool:
        """Whether anything takes the rows of this output."""
        return self.is_streamed(output) or any(node.source == output for node in self.sinks)

    def is_streamed(self, output: str) -> bool:
        """Whether another sub-topology reads the rows of this output."""
        branches = (branch for each in self.subtopologies for branch in each.stream.branches)
        return any(isinstance(branch.origin, OutputOf) and branch.origin.name == output for branch in branches)

    def add_sink(self, source: str, sink: Sink, name: str | None) -> None:
        if not isinstance(sink, Sink):
            raise TopologyError(
                f"{sink!r} is not a sink. Use hf.files('folder/'), hf.console(), hf.foreach(function) ..."
            )
        if not takes(sink.write, "version", "commit", "rows") or not takes(sink.open, "timeline"):
            raise TopologyError(
                f"The sink {sink!r} takes other arguments than a sink is given. Write open(self, timeline) and "
                "write(self, version, commit, rows)."
            )
        chosen = name or default_sink_name(source, sink.kind)
        if any(node.name == chosen for node in self.sinks):
            raise TopologyError(
                f"There are two sinks named {chosen!r}. The log keeps a sink's position under its name: "
                "give one of them another with .sink(..., name='...')."
            )
        self.sinks.append(SinkNode(chosen, source, sink))
