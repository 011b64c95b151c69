"""Writes `holdfast/client/async_client.py` from `client.py`: the same methods, on an event loop.

The two classes differ in `async` and `await` alone, so one of them is written by hand. A test compares the file with
what this makes of `client.py`.
"""

import re
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "src/holdfast/client"
BY_HAND, WRITTEN = FOLDER / "client.py", FOLDER / "async_client.py"

DOCSTRING = '''"""`hf.AsyncClient`: `hf.Client` on an event loop, with the same methods.

Reads of one answer are coroutines; ranges and watches are asynchronous iterators. Written by scripts/async_client.py
from client.py: change that, and run the script.
"""
'''
NAMES = {
    "class Client:": "class AsyncClient:",
    "RemoteStore": "AsyncRemoteStore",
    "from holdfast.client.blocking import Blocking": "from holdfast.client.awaited import Awaited",
    "Blocking": "Awaited",
    "Iterator": "AsyncIterator",
    "Any number of threads may use one client; it keeps": "It belongs to one event loop, and keeps",
    "def close(self)": "async def close(self)",
    "self._shell.close()": "await self._shell.close()",
    "def __enter__(self)": "async def __aenter__(self)",
    "def __exit__(self": "async def __aexit__(self",
    "        self.close()": "        await self.close()",
}


def async_client() -> str:
    """The text of the module."""
    text = BY_HAND.read_text().partition('"""\n\nimport')[2]
    for one, other in NAMES.items():
        text = text.replace(one, other)
    methods = [_awaiting(method) for method in re.split(r"(?m)^(?=    def )", f"import{text}")]
    return f"{DOCSTRING}\n{''.join(methods)}"


def _awaiting(method: str) -> str:
    if "return self._shell.run(" not in method:
        return method
    return method.replace("    def ", "    async def ", 1).replace("self._shell.run(", "await self._shell.run(")


if __name__ == "__main__":
    WRITTEN.write_text(async_client())
    print(f"{WRITTEN} is written")
