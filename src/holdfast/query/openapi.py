"""The OpenAPI document: the table of operations as a program reads it.

It is made when it is asked for, since an app may get further stores while it runs.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from holdfast.query.access import OPEN
from holdfast.query.answers import ProblemAnswer
from holdfast.query.operations import JSON, PLAIN, Operation, Parameter
from holdfast.query.own_documents import OwnDocument, answer_headers
from holdfast.query.refusals import refusal_components, refusals, with_body

_PART: Final = re.compile(r"\{(\w+)\}")
_REF: Final = "#/components/schemas/{name}"
_TOKEN: Final = "token"


def document(app: str, stores: Sequence[str], operations: Iterable[Operation], own: OwnDocument) -> Mapping[str, Any]:
    """The document of an app for someone who may know of these stores, and with paths of the user's own."""
    listed = [each for each in operations if each.listed]
    types = [ProblemAnswer, *(t for each in listed for t in (each.answer, each.body) if t is not None)]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    by_type = dict(zip(map(id, types), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for operation in listed:
        paths.setdefault(operation.template, {})[operation.method.lower()] = _described(operation, stores, by_type)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": f"The stores of {app}",
            "version": "1",
            "description": "Every answer says which version of the app's state it is from. An error has `error`, a "
            "name that doesn't change, `message` and `what_to_do`.",
        },
        "security": [{_TOKEN: []}, {}],  # an app may have no tokens
        "paths": {**paths, **own.paths},
        "components": {
            "schemas": {**components, **own.components},
            "responses": refusal_components(by_type[id(ProblemAnswer)], JSON),
            "securitySchemes": {_TOKEN: {"type": "http", "scheme": "bearer"}},
        },
    }


def _described(operation: Operation, stores: Sequence[str], by_type: Mapping[int, Any]) -> dict[str, Any]:
    here = stores if operation.stores is None else [name for name in operation.stores() if name in stores]
    answer = {} if operation.answer is None else {"schema": by_type[id(operation.answer)]}
    success: dict[str, Any] = {
        "description": "The answer.",
        "content": {operation.media: answer, **{media: {} for media in operation.other_media}},
    }
    if operation.answer_headers:
        success["headers"] = answer_headers(operation.answer_headers)
    errors = operation.errors if operation.method == "GET" else with_body(operation.errors)
    found: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.text,
        "parameters": [
            *(_part(name, here, operation.examples) for name in _PART.findall(operation.template)),
            *(_parameter(each, "query") for each in operation.parameters),
            *(_parameter(each, "header") for each in operation.headers),
        ],
        "responses": {
            "200": success,
            **refusals(*errors),
        },
    }
    if operation.path in OPEN:
        found["security"] = []
    if operation.body is not None:
        content: dict[str, Any] = {JSON: {"schema": by_type[id(operation.body)]}}
        if operation.plain_body:
            content[PLAIN] = {"schema": {"type": "string"}}
        found["requestBody"] = {"required": True, "content": content}
    return found


def _part(name: str, stores: Sequence[str], examples: Mapping[str, str]) -> dict[str, Any]:
    """A part of the path."""
    found: dict[str, Any] = {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
    if name == "store" and stores:
        found["schema"] = {"type": "string", "enum": list(stores)}
    if name == "key":
        found["description"] = "As /v1/stores shows it; several components are a JSON array."
    if name in examples:
        found["example"] = examples[name]
    return found


def _parameter(parameter: Parameter, place: str) -> dict[str, Any]:
    schema = {"type": "array", "items": parameter.type.schema} if parameter.many else parameter.type.schema
    return {
        "name": parameter.name,
        "in": place,
        "required": parameter.required,
        "description": parameter.text,
        "schema": schema,
    }
