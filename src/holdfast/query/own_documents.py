"""The user's own endpoints in the OpenAPI document: their parameters, and the schemas of their answers.

A schema is made from the type that a function returns. Classes within it, in lists, dicts or each other, are components
of the document, whose names begin with `own.`: none of them can have the name of one of Holdfast's.
"""

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, get_args, get_origin

import msgspec

from holdfast.query.answers import SOURCE_HEADERS
from holdfast.query.keytext import render_scalar
from holdfast.query.refusals import refusals
from holdfast.topology.endpoints import PARAMETER_TYPES, EndpointParameter, OwnEndpoint

OWN_TAG: Final = "Your own endpoints"
_OWN: Final = "own."
_REF: Final = f"#/components/schemas/{_OWN}{{name}}"
_SCHEMAS: Final[Mapping[Any, Mapping[str, Any]]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    dt.date: {"type": "string", "format": "date"},
    dt.datetime: {"type": "string", "format": "date-time"},
}


_EXAMPLES: Final[Mapping[Any, Any]] = {
    str: "alice",
    int: 42,
    float: 0.5,
    bool: True,
    dt.date: "2026-01-31",
    dt.datetime: "2026-01-31T12:00:00Z",
}


class OwnDocument(NamedTuple):
    """What the document has of the user's own endpoints."""

    paths: Mapping[str, Any]
    components: Mapping[str, Any]


def own_document(endpoints: Sequence[OwnEndpoint]) -> OwnDocument:
    types = [_answer_type(endpoint) for endpoint in endpoints]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    paths = {
        endpoint.path: {"get": _described(endpoint, schema)}
        for endpoint, schema in zip(endpoints, schemas, strict=True)
    }
    return OwnDocument(paths, {_OWN + name: schema for name, schema in components.items()})


def answer_headers(names: Iterable[str]) -> dict[str, Any]:
    """Headers of an answer. All are texts, and one that isn't known isn't sent."""
    return {name: {"schema": {"type": "string"}} for name in names}


def _answer_type(endpoint: OwnEndpoint) -> Any:
    """The type of an answer; `Any` if JSON schema has no words for it, such as for a class of another library.

    An iterator is answered as a list.
    """
    type_ = endpoint.answer
    if type_ in (Iterator, Iterable):
        type_ = list[Any]
    elif get_origin(type_) in (Iterator, Iterable):
        type_ = list[get_args(type_)[0]]  # type: ignore[misc]
    try:
        msgspec.json.schema_components([type_])
    except (TypeError, RecursionError):
        return Any
    return type_


def _default(parameter: EndpointParameter) -> dict[str, Any]:
    """What a function gets where a request leaves the parameter out, if a request could say it too."""
    if parameter.required or not isinstance(parameter.default, PARAMETER_TYPES):
        return {}
    return {"default": render_scalar(parameter.default)}


def _described(endpoint: OwnEndpoint, answer: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "operationId": f"own_{endpoint.place.replace(':', '.')}",
        "summary": endpoint.text,
        "tags": [OWN_TAG],
        "parameters": [
            {
                "name": each.name,
                "in": "path" if each.in_path else "query",
                "required": each.required,
                **({"example": _EXAMPLES[each.type]} if each.required else {}),
                "schema": {**_SCHEMAS[each.type], **_default(each)},
            }
            for each in endpoint.parameters
        ],
        "responses": {
            "200": {
                "description": "What the app's function returns.",
                "headers": answer_headers(SOURCE_HEADERS),
                "content": {"application/json": {"schema": answer}},
            },
            **refusals(404),
        },
    }
