"""The settings of each part of Holdfast: type, default, what it may be, what it means, what Kafka Streams calls it."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from holdfast.settings.declare import About, Between, Section
from holdfast.settings.units import Duration, OptionMap, Size

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@dataclass(frozen=True, kw_only=True, repr=False)
class LogSettings(Section):
    """Where the app's log is and how it is kept."""

    section: ClassVar[str] = "log"

    url: Annotated[
        str | None,
        About(
            "Where the log is: a folder, or a `file://`, `s3://`, `gs://` or `az://` address. Nothing means "
            "`<base_dir>/<app>/log`.",
            kafka="bootstrap.servers",
        ),
    ] = None
    options: Annotated[
        OptionMap,
        About(
            "What the object store needs beside the address: region, endpoint, credentials. Secrets are never shown.",
            kafka="security.protocol, sasl.*, ssl.*",
        ),
    ] = OptionMap({})
    fsync: Annotated[
        bool,
        About(
            "Whether a local folder's objects are on the disk before they are visible. Switched off, a power cut can "
            "lose committed versions; a killed process can't.",
            why_none="brokers decide (`flush.messages` of a topic)",
        ),
    ] = True
    inline_bytes: Annotated[
        Size,
        About(
            "Segments up to this size together travel inside the commit and need no object of their own.",
            why_none="Kafka has no objects to save",
        ),
        Between(0, 256 * KIB),
    ] = Size("256KiB")
    retention: Annotated[
        Duration,
        About(
            "How long segments and commits are kept once no snapshot needs them. A replica or reader that was away "
            "for less finds everything it missed.",
            kafka="topic.retention.ms",
        ),
        Between("0s"),
    ] = Duration("1h")
    clean_interval: Annotated[
        Duration,
        About(
            "How often the driver removes what is no longer needed from the log.",
            why_none="brokers clean by themselves (`log.retention.check.interval.ms`)",
        ),
        Between("1s"),
    ] = Duration("60s")


@dataclass(frozen=True, kw_only=True, repr=False)
class BatchSettings(Section):
    """How the stream is cut into batches. Where it is cut never changes the final state."""

    section: ClassVar[str] = "batch"

    commit_interval: Annotated[
        Duration,
        About(
            "The least time from the start of one batch to the start of the next: Spark's processing-time trigger. "
            "0s starts the next batch at once.",
            kafka="commit.interval.ms",
        ),
        Between("0s", "1d"),
    ] = Duration("0s")
    max_records: Annotated[
        int | None,
        About(
            "The most records a batch takes from a source that can count them (Kafka, rate).",
            kafka="max.poll.records",
        ),
        Between(1),
    ] = None
    max_files: Annotated[
        int | None,
        About("The most files a batch takes from a file source.", why_none="Kafka Streams reads no files"),
        Between(1),
    ] = None
    max_ahead: Annotated[
        Duration,
        About(
            "A record whose event time is further than this ahead of the wall clock moves no clock and goes to the "
            "dead letters.",
            kafka="topic.message.timestamp.after.max.ms",
        ),
        Between("0s"),
    ] = Duration("1h")
    segment_rows: Annotated[
        int,
        About(
            "The most keys of one task that are worked on in memory at a time. A task with more does them in several "
            "rounds.",
            kafka="statestore.cache.max.bytes",
        ),
        Between(1_000, 100_000_000),
    ] = 1_000_000
    rewrite_entries: Annotated[
        int,
        About(
            "How many entries of each store a task looks at in a version, to bring values of an older shape, and rows "
            "of older columns, to the newest. 0: a value is rewritten when it is next written. See docs/shapes.md.",
            why_none="values keep the shape they were written in",
        ),
        Between(0, 1_000_000),
    ] = 0
    state_bytes: Annotated[
        Size,
        About(
            "The most bytes of changes that one task of a processor may hold in a version. A task with more stops the "
            "app: take smaller batches or more partitions.",
            kafka="statestore.cache.max.bytes",
        ),
        Between(1 * MIB, 16 * GIB),
    ] = Size("512MiB")
    read_deadline: Annotated[
        Duration,
        About(
            "How long a task waits for an instance's answer before it tries another or fails.",
            kafka="request.timeout.ms",
        ),
        Between("100ms", "1h"),
    ] = Duration("60s")


@dataclass(frozen=True, kw_only=True, repr=False)
class Restore(Section):
    """How a fresh replica catches up."""

    section: ClassVar[str] = "restore"

    parallel_tasks: Annotated[
        int,
        About("How many tasks an instance restores at once.", why_none="one state updater thread restores them all"),
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
            "How many versions behind the newest commit a replica may be and still become active.",
            kafka="acceptable.recovery.lag",
        ),
        Between(0),
    ] = 10


@dataclass(frozen=True, kw_only=True, repr=False)
class SnapshotSettings(Section):
    """When an instance writes a task's whole state to the log, so that restore starts there."""

    section: ClassVar[str] = "snapshots"

    enabled: Annotated[
        bool,
        About(
            "Whether snapshots are taken. Without them every restore replays the whole log, and no segment is ever "
            "cleaned.",
            why_none="changelog topics are compacted instead",
        ),
    ] = True
    ratio: Annotated[
        float,
        About(
            "A snapshot is due when the segments since the last one are this many times its size, and at least 1 MiB.",
            why_none="changelog topics are compacted instead (`topic.min.cleanable.dirty.ratio`)",
        ),
        Between(0.01, 1_000.0),
    ] = 2.0
    bytes: Annotated[
        Size,
        About(
            "A snapshot is due when the segments since the last one have this many bytes.",
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
    """What an instance may use."""

    section: ClassVar[str] = "memory"

    limit: Annotated[
        Size,
        About(
            "One limit an instance, for the caches, write buffers and overlays of all its stores together.",
            kafka="rocksdb.config.setter",
        ),
        Between(64 * MIB),
    ] = Size("1GiB")


@dataclass(frozen=True, kw_only=True, repr=False)
class StateSettings(Section):
    """Local state: a copy of what the log says, on an instance's disk."""

    section: ClassVar[str] = "state"

    dir: Annotated[
        str | None,
        About("The folder of local state. Nothing means `<base_dir>/<app>/state`.", kafka="state.dir"),
    ] = None
    engine: Annotated[
        str,
        About(
            "The engine of stores that name none: `rocksdb`, `memory`, or one of your own by its place, "
            "`module:Class`. Fixed for a store once it is in the log.",
            kafka="dsl.store.suppliers.class",
        ),
    ] = "rocksdb"
    flush_interval: Annotated[
        Duration,
        About(
            "How long versions may be in memory before the engine writes them to disk. A killed instance reads them "
            "again from the log.",
            why_none="stores flush when a task commits",
        ),
        Between("100ms", "30s"),
    ] = Duration("30s")
    flush_versions: Annotated[
        int,
        About(
            "How many versions may be in memory before the engine writes them to disk.",
            why_none="stores flush when a task commits",
        ),
        Between(1, 64),
    ] = 64
    background_jobs: Annotated[
        int,
        About(
            "How many threads an instance's RocksDB has for flushes and compactions, for all stores together. A "
            "quarter of them flush, and at least one.",
            kafka="rocksdb.config.setter: setMaxBackgroundJobs, setIncreaseParallelism",
        ),
        Between(2, 256),
    ] = 2
    direct_reads: Annotated[
        bool,
        About(
            "Whether RocksDB reads past the system's page cache (O_DIRECT). What isn't in a store's own cache then "
            "comes from the disk each time. The file system of `state.dir` must be able to.",
            kafka="rocksdb.config.setter: setUseDirectReads",
        ),
    ] = False
    direct_writes: Annotated[
        bool,
        About(
            "Whether RocksDB's flushes and compactions go past the system's page cache (O_DIRECT), so that they push "
            "nothing else out of it. The file system of `state.dir` must be able to.",
            kafka="rocksdb.config.setter: setUseDirectIoForFlushAndCompaction",
        ),
    ] = False


@dataclass(frozen=True, kw_only=True, repr=False)
class RestSettings(Section):
    """Where an instance answers queries."""

    section: ClassVar[str] = "rest"

    enabled: Annotated[
        bool, About("Whether instances answer over HTTP.", why_none="Kafka Streams brings no HTTP server")
    ] = True
    host: Annotated[
        str,
        About(
            "The address to listen on. Any other than loopback lets others in: there is no authentication yet.",
            kafka="application.server",
        ),
    ] = "127.0.0.1"
    port: Annotated[
        int,
        About("The port to listen on; 0 takes any free one.", kafka="application.server"),
        Between(0, 65_535),
    ] = 8080
    driver_metrics_port: Annotated[
        int,
        About(
            "The port on which the driver serves its own `/metrics`, on the same host; 0 takes any free one. "
            "`app.metrics_address` says which.",
            why_none="metrics are JMX beans there",
        ),
        Between(0, 65_535),
    ] = 0


@dataclass(frozen=True, kw_only=True, repr=False)
class RetrySettings(Section):
    """How often and how patiently a call is tried again when the world is briefly away."""

    section: ClassVar[str] = "retry"

    attempts: Annotated[
        int,
        About("How many times a call is tried before it fails; 1 never repeats.", kafka="retries"),
        Between(1, 1000),
    ] = 5
    first: Annotated[
        Duration,
        About(
            "The longest wait before the second attempt. It doubles from attempt to attempt.",
            kafka="retry.backoff.ms",
        ),
        Between("0s", "1h"),
    ] = Duration("100ms")
    longest: Annotated[
        Duration, About("No wait is longer than this.", kafka="retry.backoff.max.ms"), Between("0s", "1h")
    ] = Duration("5s")


@dataclass(frozen=True, kw_only=True, repr=False)
class SparkSettings(Section):
    """The Spark session that the app starts when it is not given one."""

    section: ClassVar[str] = "spark"

    master: Annotated[
        str, About("Where Spark runs, as Spark writes it.", why_none="Kafka Streams runs inside your process")
    ] = "local[*]"
    checkpoint: Annotated[
        str | None,
        About(
            "The folder of Spark's checkpoint. Nothing means `<base_dir>/<app>/checkpoint`.",
            why_none="positions are in the consumer group (`application.id`)",
        ),
    ] = None
    config: Annotated[
        OptionMap,
        About(
            "Spark's own properties for the session, such as `spark.executor.memory`. Secrets are never shown.",
            kafka="main.consumer.*, producer.*",
        ),
    ] = OptionMap({})
