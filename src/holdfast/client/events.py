"""Server-sent events, parsed from the bytes of a connection as they arrive."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Event:
    """A block of the stream. One without data only moves the place to go on from."""

    name: str
    data: str
    id: str | None


class EventParser:
    """Makes events of bytes that are cut anywhere.

    >>> parser = EventParser()
    >>> parser.feed(b"id: 7\\nda"), parser.feed(b"ta: {}\\n\\n: heartbeat\\nid: 8\\n\\n")
    ([], [Event(name='message', data='{}', id='7'), Event(name='message', data='', id='8')])
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Event]:
        """The events that are complete with these bytes."""
        *blocks, self._rest = (self._rest + data).split(b"\n\n")
        return [_event(block.decode()) for block in blocks]


def _event(block: str) -> Event:
    name, data, id = "message", [], None
    for line in block.split("\n"):
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            name = value
        elif field == "data":
            data.append(value)
        elif field == "id":
            id = value
    return Event(name, "\n".join(data), id)
