"""The OpenAPI document over HTTP, and a page to try the operations with.

The page is one file of this package. It reads the document, shows a form per operation, and loads nothing from other
hosts; its headers forbid it to.
"""

from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Scope

from holdfast.query.grants import visible
from holdfast.query.openapi import document
from holdfast.query.operations import Call, Operation
from holdfast.query.own_documents import OwnDocument
from holdfast.query.problems import json_response
from holdfast.query.reader import StoreReader

_PAGE: Final = "try_page.html"
_ONLY_HERE: Final = "default-src 'none'; connect-src 'self'; script-src 'unsafe-inline'; style-src 'unsafe-inline'"


def document_operations(
    reader: StoreReader, operations: Sequence[Operation], own: Callable[[Scope], OwnDocument]
) -> list[Operation]:
    """The operations that describe all operations, themselves included, and the paths of the user's own."""
    described: list[Operation] = []

    async def openapi(call: Call) -> Response:
        stores = visible(call.request.scope, [spec.name for spec in reader.specs.all()])
        return json_response(document(reader.app.id, stores, described, own(call.request.scope)))

    async def page(call: Call) -> Response:
        text = files("holdfast.query").joinpath(_PAGE).read_text()
        return Response(text, media_type="text/html", headers={"Content-Security-Policy": _ONLY_HERE})

    here = [
        Operation("get_openapi", "/v1/openapi.json", "This document.", openapi, dict[str, Any]),
        Operation("get_docs", "/v1/docs", "A page to try the operations.", page, None, media="text/html"),
    ]
    described += [*operations, *here]
    return here
