"""The OpenAPI document over HTTP, and a page to try the operations with.

The page is Swagger UI 5.35.0 as its authors have published it, in the folder `docs_page` with its licence, and a script
of ours that starts it (decision 0051). Everything is in this package; the headers forbid the page to load anything from
other hosts, or to run what isn't a file here.
"""

from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Final

from starlette.responses import RedirectResponse, Response
from starlette.types import Scope

from holdfast.query.access import DOCS, PAGE_FILES
from holdfast.query.grants import visible
from holdfast.query.keytext import example
from holdfast.query.openapi import document
from holdfast.query.operations import Call, Operation
from holdfast.query.own_documents import OwnDocument
from holdfast.query.problems import json_response
from holdfast.query.reader import StoreReader

_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-cache",  # they belong together, and change with the release
    "X-Content-Type-Options": "nosniff",
}


def document_operations(
    reader: StoreReader, operations: Sequence[Operation], own: Callable[[Scope], OwnDocument]
) -> list[Operation]:
    """The operations that describe all operations, themselves included, and the paths of the user's own."""
    described: list[Operation] = []

    async def openapi(call: Call) -> Response:
        stores = visible(call.request.scope, [spec.name for spec in reader.specs.all()])
        keys = {store: example(reader.specs[store].key) for store in stores}
        return json_response(document(reader.app.id, keys, described, own(call.request.scope)))

    async def root(call: Call) -> Response:
        return RedirectResponse(DOCS[1:])  # also behind a path of a proxy

    here = [
        Operation(
            "get_openapi",
            "/v1/openapi.json",
            "This document.",
            openapi,
            dict[str, Any],
            tag="This document",
            returns="An OpenAPI 3.1 document, with the stores that the token may read.",
        ),
        Operation(
            "get_docs",
            DOCS,
            "A page to try the operations.",
            _file("index.html", "text/html"),
            None,
            media="text/html",
            tag="This document",
            returns="A page for browsers.",
        ),
        *(
            Operation(f"get_{name}", f"{DOCS}/{name}", "A file of the page.", _file(name, media), None, listed=False)
            for name, media in PAGE_FILES.items()
        ),
        Operation("get_root", "/", "Leads to the page.", root, None, listed=False),
    ]
    described += [*operations, *here]
    return here


def _file(name: str, media: str) -> Callable[[Call], Any]:
    """A file of the page, as it is."""

    async def answer(call: Call) -> Response:
        return Response(_content(name), media_type=media, headers=_HEADERS)

    return answer


@cache
def _content(name: str) -> bytes:
    """One object for all who read it slowly."""
    return files("holdfast.query").joinpath("docs_page", name).read_bytes()
