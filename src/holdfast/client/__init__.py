"""The Python client: the stores of a running app, read over HTTP.

A pure core (`core`, `asking`, `router`, `store_flows`, `watching`, `frames`) decides whom to ask what, and yields
effects; two shells (`blocking`, `awaited`) perform them; `client` and `async_client` are what users call. The errors
are in `holdfast.client.errors`. Importing it imports neither Spark nor an engine.
"""

from holdfast.client.answers import AnswerPage, AnswerSource, Change, Past, Spanned, StoreEntry
from holdfast.client.async_client import AsyncClient, AsyncRemoteStore
from holdfast.client.client import Client, RemoteStore
from holdfast.client.frames import Frame
from holdfast.client.options import ReadOptions

__all__ = [
    "AnswerPage",
    "AnswerSource",
    "AsyncClient",
    "AsyncRemoteStore",
    "Change",
    "Client",
    "Frame",
    "Past",
    "ReadOptions",
    "RemoteStore",
    "Spanned",
    "StoreEntry",
]
