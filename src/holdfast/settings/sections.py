"""The sections of the settings: type, default, allowed values, meaning, and the counterpart in Kafka Streams."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from holdfast.settings.declare import About, Between, Section
from holdfast.settings.units import Duration, OptionMap, Size

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@dataclass(frozen=True, kw_only=True, repr=False)
class LogSettings(Section):
    """Where the app's log is and how long it is kept."""

    section: ClassVar[str] = "log"

    url: Annotated[
        str | None,
        About(
            "The address of the log: a folder, or a `file://`, `s3://`, `gs://` or `az://` address. If not set: "
            "`<base_dir>/<app>/log`.",
            kafka="bootstrap.servers",
        ),
    ] = None
    options: Annotated[
        OptionMap,
        About(
            "Options of the object storage, such as region, endpoint and credentials. Secrets are never shown.",
            kafka="security.protocol, sasl.*, ssl.*",
        ),
    ] = OptionMap({})
    fsync: Annotated[
        bool,
        About(
            "Whether objects in a local folder are fsynced before they become visible. If false, a power failure can "
            "lose committed versions; a killed process can't.",
            why_none="a setting of topics (`flush.messages`)",
        ),
    ] = True
    inline_bytes: Annotated[
        Size,
        About(
            "Segments that together have at most this size are stored inside the commit instead of as objects.",
            why_none="Kafka doesn't store objects",
        ),
        Between(0, 256 * KIB),
    ] = Size("256KiB")
    retention: Annotated[
        Duration,
        About(
            "How long segments and commits are kept after no snapshot needs them. A replica or reader that was stopped "
            "for a shorter time can read everything it missed.",
            kafka="topic.retention.ms",
        ),
        Between("0s"),
    ] = Duration("1h")
    clean_interval: Annotated[
        Duration,
        About(
            "How often the driver deletes objects that are no longer needed from the log.",
            why_none="a setting of brokers (`log.retention.check.interval.ms`)",
        ),
        Between("1s"),
    ] = Duration("60s")


@dataclass(frozen=True, kw_only=True, repr=False)
class BatchSettings(Section):
    """How the stream is divided into batches. This never changes the final state."""

    section: ClassVar[str] = "batch"

    commit_interval: Annotated[
        Duration,
        About(
            "The minimum time between the starts of two batches: Spark's processing-time trigger. With 0s the next "
            "batch starts immediately.",
            kafka="commit.interval.ms",
        ),
        Between("0s", "1d"),
    ] = Duration("0s")
    max_records: Annotated[
        int | None,
        About(
            "The maximum number of records per batch, for sources that can count them (Kafka, rate).",
            kafka="max.poll.records",
        ),
        Between(1),
    ] = None
    max_files: Annotated[
        int | None,
        About("The maximum number of files per batch, for file sources.", why_none="Kafka Streams doesn't read files"),
        Between(1),
    ] = None
    max_ahead: Annotated[
        Duration,
        About(
            "A record whose event time is later than the wall clock by more than this becomes a dead letter and "
            "doesn't advance event time.",
            kafka="topic.message.timestamp.after.max.ms",
        ),
        Between("0s"),
    ] = Duration("1h")
    segment_rows: Annotated[
        int,
        About(
            "The maximum number of keys that a task processes in memory at a time. A task with more keys processes "
            "them in several rounds.",
            kafka="statestore.cache.max.bytes",
        ),
        Between(1_000, 100_000_000),
    ] = 1_000_000
    rewrite_entries: Annotated[
        int,
        About(
            "How many entries per store and version a task checks, to rewrite values of older schemas in the newest "
            "one. With 0 a value is rewritten only when it changes. See docs/schemas.md.",
            why_none="values keep the schema they were written with",
        ),
        Between(0, 1_000_000),
    ] = 0
    state_bytes: Annotated[
        Size,
        About(
            "The maximum size of the changes of one processor task in one version. A task with more stops the app: use "
            "smaller batches or more partitions.",
            kafka="statestore.cache.max.bytes",
        ),
        Between(1 * MIB, 16 * GIB),
    ] = Size("512MiB")
    read_deadline: Annotated[
        Duration,
        About(
            "How long a task tries to read state from its instances before it fails.",
            kafka="request.timeout.ms",
        ),
        Between("100ms", "1h"),
    ] = Duration("60s")


@dataclass(frozen=True, kw_only=True, repr=False)
class Restore(Section):
    """How a replica catches up with the log."""

    section: ClassVar[str] = "restore"

    parallel_tasks: Annotated[
        int,
        About("How many tasks an instance restores in parallel.", why_none="one thread restores all of them"),
        Between(1, 256),
    ] = 4
    batch_bytes: Annotated[
        Size,
        About(
            "How many bytes of segments a restoring task reads before it applies them.",
            kafka="restore.consumer.fetch.max.bytes",
        ),
        Between(1 * MIB, 16 * GIB),
    ] = Size("64MiB")
    acceptable_lag: Annotated[
        int,
        About(
            "By how many versions a replica may lag behind the newest commit and still become active.",
            kafka="acceptable.recovery.lag",
        ),
        Between(0),
    ] = 10


@dataclass(frozen=True, kw_only=True, repr=False)
class SnapshotSettings(Section):
    """When an instance saves a task's whole state to the log, so that a restore starts there."""

    section: ClassVar[str] = "snapshots"

    enabled: Annotated[
        bool,
        About(
            "Whether snapshots are taken. Without them every restore replays the whole log, and no segment is ever "
            "deleted.",
            why_none="changelog topics are compacted instead",
        ),
    ] = True
    ratio: Annotated[
        float,
        About(
            "A snapshot is due when the segments after the last one have this many times its size, and at least 1 MiB.",
            why_none="changelog topics are compacted instead (`topic.min.cleanable.dirty.ratio`)",
        ),
        Between(0.01, 1_000.0),
    ] = 2.0
    bytes: Annotated[
        Size,
        About(
            "A snapshot is due when the segments after the last one have this size.",
            why_none="changelog topics are compacted instead (`topic.segment.bytes`)",
        ),
        Between(1 * KIB),
    ] = Size("256MiB")
    age: Annotated[
        Duration,
        About(
            "A snapshot is due when the last one is this old and there are newer versions.",
            why_none="changelog topics are compacted instead (`topic.max.compaction.lag.ms`)",
        ),
        Between("1s"),
    ] = Duration("10m")


@dataclass(frozen=True, kw_only=True, repr=False)
class MemorySettings(Section):
    """How much memory an instance may use."""

    section: ClassVar[str] = "memory"

    limit: Annotated[
        Size,
        About(
            "The limit per instance for the caches, write buffers and overlays of all its stores together.",
            kafka="rocksdb.config.setter",
        ),
        Between(64 * MIB),
    ] = Size("1GiB")


@dataclass(frozen=True, kw_only=True, repr=False)
class StateSettings(Section):
    """Local state: an instance's copy of the state in the log."""

    section: ClassVar[str] = "state"

    dir: Annotated[
        str | None,
        About("The folder of local state. If not set: `<base_dir>/<app>/state`.", kafka="state.dir"),
    ] = None
    engine: Annotated[
        str,
        About(
            "The engine of stores that don't name one: `rocksdb`, `memory`, or your own as `module:Class`. The engine "
            "of a store can't be changed once the store is in the log.",
            kafka="dsl.store.suppliers.class",
        ),
    ] = "rocksdb"
    flush_interval: Annotated[
        Duration,
        About(
            "How long versions may stay in memory before they are written to disk. A killed instance reads them from "
            "the log again.",
            why_none="stores flush when a task commits",
        ),
        Between("100ms", "30s"),
    ] = Duration("30s")
    flush_versions: Annotated[
        int,
        About(
            "How many versions may stay in memory before they are written to disk.",
            why_none="stores flush when a task commits",
        ),
        Between(1, 64),
    ] = 64
    background_jobs: Annotated[
        int,
        About(
            "The number of threads per instance for RocksDB's flushes and compactions, for all stores together. A "
            "quarter of them, and at least one, are for flushes.",
            kafka="rocksdb.config.setter: setMaxBackgroundJobs, setIncreaseParallelism",
        ),
        Between(2, 256),
    ] = 2
    direct_reads: Annotated[
        bool,
        About(
            "Whether RocksDB's reads bypass the page cache of the system (O_DIRECT). Blocks that aren't in RocksDB's "
            "cache are then always read from disk. The file system of `state.dir` must support it.",
            kafka="rocksdb.config.setter: setUseDirectReads",
        ),
    ] = False
    direct_writes: Annotated[
        bool,
        About(
            "Whether RocksDB's flushes and compactions bypass the page cache of the system (O_DIRECT), so that they "
            "don't evict other pages. The file system of `state.dir` must support it.",
            kafka="rocksdb.config.setter: setUseDirectIoForFlushAndCompaction",
        ),
    ] = False


@dataclass(frozen=True, kw_only=True, repr=False)
class RestSettings(Section):
    """Where an instance answers queries over HTTP."""

    section: ClassVar[str] = "rest"

    enabled: Annotated[
        bool, About("Whether instances answer queries over HTTP.", why_none="Kafka Streams has no HTTP server")
    ] = True
    host: Annotated[
        str,
        About(
            "The address to listen on. There is no authentication yet, so any address other than loopback gives other "
            "hosts access.",
            kafka="application.server",
        ),
    ] = "127.0.0.1"
    port: Annotated[
        int,
        About("The port to listen on; 0 uses any free port.", kafka="application.server"),
        Between(0, 65_535),
    ] = 8080
    driver_metrics_port: Annotated[
        int,
        About(
            "The port on which the driver serves its own `/metrics`, on the same host; 0 uses any free port. "
            "`app.metrics_address` has the address.",
            why_none="metrics are JMX beans",
        ),
        Between(0, 65_535),
    ] = 0


@dataclass(frozen=True, kw_only=True, repr=False)
class RetrySettings(Section):
    """How calls are retried after a failure that may pass."""

    section: ClassVar[str] = "retry"

    attempts: Annotated[
        int,
        About("The maximum number of attempts. 1 means no retry.", kafka="retries"),
        Between(1, 1000),
    ] = 5
    first: Annotated[
        Duration,
        About(
            "The maximum wait before the second attempt. It doubles with every attempt.",
            kafka="retry.backoff.ms",
        ),
        Between("0s", "1h"),
    ] = Duration("100ms")
    longest: Annotated[
        Duration, About("The maximum wait before any attempt.", kafka="retry.backoff.max.ms"), Between("0s", "1h")
    ] = Duration("5s")


@dataclass(frozen=True, kw_only=True, repr=False)
class SparkSettings(Section):
    """The Spark session that the app creates if none is passed to it."""

    section: ClassVar[str] = "spark"

    master: Annotated[str, About("The master URL of Spark.", why_none="Kafka Streams runs inside your process")] = (
        "local[*]"
    )
    checkpoint: Annotated[
        str | None,
        About(
            "The folder of Spark's checkpoint. If not set: `<base_dir>/<app>/checkpoint`.",
            why_none="offsets are in the consumer group (`application.id`)",
        ),
    ] = None
    config: Annotated[
        OptionMap,
        About(
            "Spark's own properties of the session, such as `spark.executor.memory`. Secrets are never shown.",
            kafka="main.consumer.*, producer.*",
        ),
    ] = OptionMap({})
