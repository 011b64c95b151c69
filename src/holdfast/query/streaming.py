"""Answers in pieces, made on threads while they are sent.

The pieces come from a generator, which holds what it reads (read views, streams of other instances). It is closed when
the last piece is sent, and as soon as the client has left or the instance stops: the piece that is being made is the
last one. At most one piece is in memory per answer; the next is made when the connection has taken it, and when there
is room for as much as the largest one has taken so far (`outgoing`).

A piece is sent only if the client may still ask for it. If not, the generator gets the refusal as an error where it
stands, and may send a last piece that says so. If it doesn't, the answer is cut off: its connection ends before it.
"""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping
from typing import Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.query.grants import check_admitted
from holdfast.query.limits import begin_stream
from holdfast.query.outgoing import HELD_PIECES, OUTGOING, Outgoing
from holdfast.query.problems import Problem
from holdfast.query.server import STREAMED

PIECE_BYTES: Final = 1 << 20
"""About how many bytes a piece has. One entry may have more."""


class _Pieces:
    """A generator that one thread uses at a time, whichever it is."""

    def __init__(self, made: Generator[bytes, None, None]) -> None:
        self._made = made
        self._using = threading.Lock()

    def next(self) -> bytes | None:
        with self._using:
            return next(self._made, None)

    def last(self, refusal: Problem) -> bytes:
        """The piece that says why there are no more. Raises the refusal where the format has none."""
        with self._using:
            return self._made.throw(refusal)

    def close(self) -> None:
        with self._using:
            self._made.close()


class _Cut(HoldfastError):
    """The answer is not sent to its end."""

    category = ErrorCategory.CLOSED


class _Streamed(StreamingResponse):
    """Closes the pieces when it has ended."""

    def __init__(
        self, pieces: _Pieces, messages: AsyncIterator[Message], media: str, headers: Mapping[str, str] | None
    ) -> None:
        super().__init__((), media_type=media, headers=headers)
        self._pieces = pieces
        self._messages = messages

    async def stream_response(self, send: Send) -> None:
        with contextlib.suppress(_Cut):  # without its last message, the server closes the connection
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for message in self._messages:
                await send(message)
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            # Not awaited: a request that was cancelled can't wait, and another thread may be making a piece.
            asyncio.get_running_loop().run_in_executor(None, self._pieces.close)


async def streamed(
    request: Request,
    made: Generator[bytes, None, None],
    media: str,
    headers: Mapping[str, str] | None = None,
    *,
    begin: Callable[[Callable[[], bytes | None]], Awaitable[bytes | None]] = asyncio.to_thread,
) -> Response:
    """The pieces as an answer. The first one is made here: an error in it is answered as any other.

    Raises a Problem before that if there are too many such answers.

    `headers` are looked at after that, so the generator may fill them. `begin` runs it on a thread.
    """
    begin_stream(request.scope, is_scan=True)
    outgoing: Outgoing | None = request.scope.get(OUTGOING)
    pieces, largest = _Pieces(made), PIECE_BYTES
    await _reserve(outgoing, largest)
    message = _body(await begin(pieces.next))

    async def messages() -> AsyncIterator[Message]:
        nonlocal message, largest
        if request.method == "HEAD":  # all of it would be read to send nothing
            return
        while message is not None:
            try:
                check_admitted(request.scope)
            except Problem as refusal:
                yield _body(await _last(pieces, refusal)) or {}
                return
            if size := len(message["body"]):
                largest = max(largest, size)
                yield message  # it is empty from here on
            await _reserve(outgoing, largest)
            message = _body(await asyncio.to_thread(pieces.next))

    request.scope[STREAMED] = True
    return _Streamed(pieces, messages(), media, headers)


async def _reserve(outgoing: Outgoing | None, size: int) -> None:
    """Returns when there is room for a piece, and for what is held to make it."""
    if outgoing is not None:
        await outgoing.reserve((1 + HELD_PIECES) * size)


def _body(piece: bytes | None) -> Message | None:
    return None if piece is None else {"type": "http.response.body", "body": piece, "more_body": True}


async def _last(pieces: _Pieces, refusal: Problem) -> bytes:
    try:
        return await asyncio.to_thread(pieces.last, refusal)
    except Problem:
        raise _Cut from None
