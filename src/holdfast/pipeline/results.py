"""What a task hands back to the driver: one small message, whatever the batch's size."""

import msgspec

from holdfast.log.segments import SegmentRef


class TaskError(msgspec.Struct, frozen=True):
    """Why a task refused its rows. Not an exception in Spark, which would only run the task again."""

    type: str
    message: str
    retry: bool


class TaskResult(msgspec.Struct, frozen=True):
    """One task's part of a version."""

    task: str
    segments: tuple[SegmentRef, ...] = ()
    counts: dict[str, int] = {}
    event_time: int | None = None
    error: TaskError | None = None


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(TaskResult)


def encode(result: TaskResult) -> bytes:
    return _encoder.encode(result)


def decode(data: bytes) -> TaskResult:
    return _decoder.decode(data)
