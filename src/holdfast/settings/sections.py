"""The sections of the settings: type, default, allowed values, meaning, and the counterpart in Kafka Streams."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from holdfast.settings.declare import Between, InKafkaStreams, Section
from holdfast.settings.units import Duration, OptionMap, Size

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@dataclass(frozen=True, kw_only=True, repr=False)
class LogSettings(Section):
    """Where the app's log is and how long it is kept."""

    section: ClassVar[str] = "log"

    url: Annotated[
        str | None,
        "The address of the log: a folder, or a `file://`, `s3://`, `gs://` or `az://` address. If not set: "
        "`<base_dir>/<app>/log`.",
        InKafkaStreams("`bootstrap.servers`"),
    ] = None
    options: Annotated[
        OptionMap,
        "Options of the object storage, such as region, endpoint and credentials. Secrets are never shown.",
        InKafkaStreams("`security.protocol, sasl.*, ssl.*`"),
    ] = OptionMap({})
    fsync: Annotated[
        bool,
        "Whether objects in a local folder are fsynced before they become visible. If false, a power failure can "
        "lose committed versions; a killed process can't.",
        InKafkaStreams("none: a setting of topics (`flush.messages`)"),
    ] = True
    inline_bytes: Annotated[
        Size,
        "Segments that together have at most this size are stored inside the commit instead of as objects.",
        InKafkaStreams("none: Kafka doesn't store objects"),
        Between(0, 256 * KIB),
    ] = Size("256KiB")
    retention: Annotated[
        Duration,
        "How long segments and commits are kept after no snapshot needs them. A replica or reader that was stopped "
        "for a shorter time can read everything it missed.",
        InKafkaStreams("`topic.retention.ms`"),
        Between("0s"),
    ] = Duration("1h")
    keep_removed: Annotated[
        Duration,
        "How long a store that the code no longer has is kept, by the wall clock of the commits. The first start after "
        "that deletes it.",
        InKafkaStreams("none: the changelog topic stays until it is deleted by hand"),
        Between("0s"),
    ] = Duration("7d")
    clean_interval: Annotated[
        Duration,
        "How often the driver deletes objects that are no longer needed from the log.",
        InKafkaStreams("none: a setting of brokers (`log.retention.check.interval.ms`)"),
        Between("1s"),
    ] = Duration("60s")


@dataclass(frozen=True, kw_only=True, repr=False)
class BatchSettings(Section):
    """How the stream is divided into batches. This changes the final state only where records are late.

    Whether a record is late is decided by the event clock of the version before: with larger batches fewer are.
    """

    section: ClassVar[str] = "batch"

    commit_interval: Annotated[
        Duration,
        "The minimum time between the starts of two batches: Spark's processing-time trigger. With 0s the next "
        "batch starts immediately.",
        InKafkaStreams("`commit.interval.ms`"),
        Between("0s", "1d"),
    ] = Duration("0s")
    idle_interval: Annotated[
        Duration,
        "When no batch arrives, the minimum time between two versions that the driver makes because something is due, "
        "such as the end of a TTL. It makes none while nothing is due.",
        InKafkaStreams("none: the wall clock is read by each instance"),
        Between("10ms", "1d"),
    ] = Duration("1s")
    idle_after: Annotated[
        Duration,
        "A source that had no records for this long, by the wall clock, is idle: it no longer holds back the event "
        "clock of an app with several sources.",
        InKafkaStreams("`max.task.idle.ms`"),
        Between("1ms", "365d"),
    ] = Duration("1m")
    poll_interval: Annotated[
        Duration,
        "How long Spark waits before it looks for new records again after it found none: Spark's "
        "`spark.sql.streaming.pollingDelay`. A session that sets that option keeps it. See docs/tuning.md.",
        InKafkaStreams("`poll.ms`"),
        Between("1ms", "1m"),
    ] = Duration("100ms")
    max_records: Annotated[
        int | None,
        "The maximum number of records per batch, for Kafka. A source has it if it is read with `app.reader`; a Kafka "
        "source that is read without a limit is refused.",
        InKafkaStreams("`max.poll.records`"),
        Between(1),
    ] = None
    max_files: Annotated[
        int | None,
        "The maximum number of files per batch, for file sources. A source has it if it is read with `app.reader`; a "
        "file source that is read without a limit is refused.",
        InKafkaStreams("none: Kafka Streams doesn't read files"),
        Between(1),
    ] = None
    max_ahead: Annotated[
        Duration,
        "A record whose event time is later than the wall clock by more than this becomes a dead letter and "
        "doesn't advance event time.",
        InKafkaStreams("`topic.message.timestamp.after.max.ms`"),
        Between("0s"),
    ] = Duration("1h")
    max_clock_jump: Annotated[
        Duration,
        "How far the driver's wall clock may jump ahead of the time that has passed. Beyond that no version is made "
        "until it is back, since everything with a TTL would expire: a batch waits and the alert hook is called "
        "once. A start accepts the clock, since it can't tell a wrong one from a long downtime: it warns, with the "
        "difference and the stores whose entries would expire, and so does `app.plan()`.",
        InKafkaStreams("none: the wall clock is taken as it is"),
        Between("1s"),
    ] = Duration("1h")
    segment_rows: Annotated[
        int,
        "The maximum number of keys that a task processes in memory at a time. A task with more keys processes "
        "them in several rounds.",
        InKafkaStreams("`statestore.cache.max.bytes`"),
        Between(1_000, 100_000_000),
    ] = 1_000_000
    rewrite_entries: Annotated[
        int,
        "How many entries per store and version a task checks, to rewrite values of older schemas in the newest "
        "one. With 0 a value is rewritten only when it changes. See docs/schemas.md.",
        InKafkaStreams("none: values keep the schema they were written with"),
        Between(0, 1_000_000),
    ] = 0
    state_bytes: Annotated[
        Size,
        "The maximum size of the changes of one processor task in one version. A task with more stops the app: use "
        "smaller batches or more partitions.",
        InKafkaStreams("`statestore.cache.max.bytes`"),
        Between(1 * MIB, 16 * GIB),
    ] = Size("512MiB")
    read_deadline: Annotated[
        Duration,
        "How long a task tries to read state from its instances before it fails.",
        InKafkaStreams("`request.timeout.ms`"),
        Between("100ms", "1h"),
    ] = Duration("60s")


@dataclass(frozen=True, kw_only=True, repr=False)
class RestoreSettings(Section):
    """How a replica catches up with the log."""

    section: ClassVar[str] = "restore"

    parallel_tasks: Annotated[
        int,
        "How many tasks an instance restores in parallel.",
        InKafkaStreams("none: one thread restores all of them"),
        Between(1, 256),
    ] = 4
    batch_bytes: Annotated[
        Size,
        "How many bytes of segments a restoring task reads before it applies them.",
        InKafkaStreams("`restore.consumer.fetch.max.bytes`"),
        Between(1 * MIB, 16 * GIB),
    ] = Size("64MiB")
    bandwidth: Annotated[
        Size,
        "How many bytes per second an instance reads for restores, all its tasks together. With 0 there is no limit.",
        InKafkaStreams("none: a quota of brokers (`consumer_byte_rate`)"),
        Between(0),
    ] = Size(0)
    acceptable_lag: Annotated[
        int,
        "By how many versions a replica may lag behind the newest commit and still become active.",
        InKafkaStreams("`acceptable.recovery.lag`"),
        Between(0),
    ] = 10


@dataclass(frozen=True, kw_only=True, repr=False)
class SnapshotSettings(Section):
    """When an instance saves a task's whole state to the log, so that a restore starts there."""

    section: ClassVar[str] = "snapshots"

    enabled: Annotated[
        bool,
        "Whether snapshots are taken. Without them every restore replays the whole log, and no segment is ever "
        "deleted.",
        InKafkaStreams("none: changelog topics are compacted instead"),
    ] = True
    ratio: Annotated[
        float,
        "A snapshot is due when the segments after the last one have this many times its size, and at least 1 MiB. "
        "Before the first one, the size of the state counts.",
        InKafkaStreams("none: changelog topics are compacted instead (`topic.min.cleanable.dirty.ratio`)"),
        Between(0.01, 1_000.0),
    ] = 2.0
    bytes: Annotated[
        Size,
        "A snapshot is due when the segments after the last one have this size.",
        InKafkaStreams("none: changelog topics are compacted instead (`topic.segment.bytes`)"),
        Between(1 * KIB),
    ] = Size("256MiB")
    age: Annotated[
        Duration,
        "A snapshot is due when the last one is this old and there are newer versions.",
        InKafkaStreams("none: changelog topics are compacted instead (`topic.max.compaction.lag.ms`)"),
        Between("1s"),
    ] = Duration("10m")


@dataclass(frozen=True, kw_only=True, repr=False)
class MemorySettings(Section):
    """How much memory an instance may use."""

    section: ClassVar[str] = "memory"

    limit: Annotated[
        Size,
        "The limit per instance for the caches, write buffers and overlays of all its stores together.",
        InKafkaStreams("`rocksdb.config.setter`"),
        Between(64 * MIB),
    ] = Size("1GiB")


@dataclass(frozen=True, kw_only=True, repr=False)
class StateSettings(Section):
    """Local state: an instance's copy of the state in the log."""

    section: ClassVar[str] = "state"

    dir: Annotated[
        str | None, "The folder of local state. If not set: `<base_dir>/<app>/state`.", InKafkaStreams("`state.dir`")
    ] = None
    engine: Annotated[
        str,
        "The engine of stores that don't name one: `rocksdb`, `memory`, or your own as `module:Class`. The engine "
        "of a store can't be changed once the store is in the log.",
        InKafkaStreams("`dsl.store.suppliers.class`"),
    ] = "rocksdb"
    cleanup_delay: Annotated[
        Duration,
        "How long an instance keeps the folder of a task that it no longer hosts. If the task comes back earlier, only "
        "what it missed is restored.",
        InKafkaStreams("`state.cleanup.delay.ms`"),
        Between("0s"),
    ] = Duration("10m")
    flush_interval: Annotated[
        Duration,
        "How long versions may stay in memory before they are written to disk. A killed instance reads them from "
        "the log again.",
        InKafkaStreams("none: stores flush when a task commits"),
        Between("100ms", "30s"),
    ] = Duration("30s")
    flush_versions: Annotated[
        int,
        "How many versions may stay in memory before they are written to disk.",
        InKafkaStreams("none: stores flush when a task commits"),
        Between(1, 64),
    ] = 64
    background_jobs: Annotated[
        int,
        "The number of threads per instance for RocksDB's flushes and compactions, for all stores together. A "
        "quarter of them, and at least one, are for flushes.",
        InKafkaStreams("`rocksdb.config.setter: setMaxBackgroundJobs, setIncreaseParallelism`"),
        Between(2, 256),
    ] = 2
    direct_reads: Annotated[
        bool,
        "Whether RocksDB's reads bypass the page cache of the system (O_DIRECT). Blocks that aren't in RocksDB's "
        "cache are then always read from disk. The file system of `state.dir` must support it.",
        InKafkaStreams("`rocksdb.config.setter: setUseDirectReads`"),
    ] = False
    direct_writes: Annotated[
        bool,
        "Whether RocksDB's flushes and compactions bypass the page cache of the system (O_DIRECT), so that they "
        "don't evict other pages. The file system of `state.dir` must support it.",
        InKafkaStreams("`rocksdb.config.setter: setUseDirectIoForFlushAndCompaction`"),
    ] = False


@dataclass(frozen=True, kw_only=True, repr=False)
class RetrySettings(Section):
    """How calls are retried after a failure that may pass."""

    section: ClassVar[str] = "retry"

    attempts: Annotated[
        int, "The maximum number of attempts. 1 means no retry.", InKafkaStreams("`retries`"), Between(1, 1000)
    ] = 5
    first: Annotated[
        Duration,
        "The maximum wait before the second attempt. It doubles with every attempt.",
        InKafkaStreams("`retry.backoff.ms`"),
        Between("0s", "1h"),
    ] = Duration("100ms")
    longest: Annotated[
        Duration, "The maximum wait before any attempt.", InKafkaStreams("`retry.backoff.max.ms`"), Between("0s", "1h")
    ] = Duration("5s")


@dataclass(frozen=True, kw_only=True, repr=False)
class SparkSettings(Section):
    """The Spark session that the app creates if none is passed to it."""

    section: ClassVar[str] = "spark"

    master: Annotated[
        str, "The master URL of Spark.", InKafkaStreams("none: Kafka Streams runs inside your process")
    ] = "local[*]"
    checkpoint: Annotated[
        str | None,
        "The folder of Spark's checkpoint. If not set: `<base_dir>/<app>/checkpoint`.",
        InKafkaStreams("none: offsets are in the consumer group (`application.id`)"),
    ] = None
    quiet: Annotated[
        bool,
        "Whether Spark prints nothing but errors that Holdfast doesn't report itself: no banner and no warnings. Your "
        "own session, one whose Spark has a `log4j2.properties`, or that sets `spark.driver.extraJavaOptions`, logs as "
        "it does without Holdfast.",
        InKafkaStreams("none: a library that logs as your process does"),
    ] = True
    config: Annotated[
        OptionMap,
        "Spark's own properties of the session, such as `spark.executor.memory`. If the process has a session before "
        "the app, it gets those that can change while it runs, and a warning names the others. Secrets are never "
        "shown.",
        InKafkaStreams("`main.consumer.*, producer.*`"),
    ] = OptionMap({})
