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
from holdfast.query.own_documents import OWN_TAG, OwnDocument, answer_headers
from holdfast.query.refusals import refusal_components, refusals, with_body

_PART: Final = re.compile(r"\{(\w+)\}")
_REF: Final = "#/components/schemas/{name}"
_TOKEN: Final = "token"
TAGS: Final = {
    "Entries": "Values by their keys: one, many, a range, all, and how many there are.",
    "Times": "Windows, sessions and histories of values.",
    "Leaderboards": "The best rows, and the rank of a row.",
    "Queries of kinds": "What the app's own kinds of stores answer.",
    "Columns and SQL": "Whole stores as Arrow columns, and SELECT statements.",
    "Changes": "What changes, as it is committed.",
    "Stores": "Which stores there are, and their types.",
    "The app": "Its state, its health, its metrics, and where its tasks are.",
    OWN_TAG: "Paths of the app's own.",
    "This document": "The operations, for programs and for people.",
}
"""The groups of operations, in the order in which they are shown."""


def document(
    app: str, stores: Mapping[str, str], operations: Iterable[Operation], own: OwnDocument
) -> Mapping[str, Any]:
    """The document of an app for someone who may know of these stores, and with paths of the user's own.

    `stores` has an example of a key per store.
    """
    listed = [each for each in operations if each.listed]
    types = [ProblemAnswer, *(t for each in listed for t in (each.answer, each.body) if t is not None)]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    by_type = dict(zip(map(id, types), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for operation in listed:
        paths.setdefault(operation.template, {})[operation.method.lower()] = _described(operation, stores, by_type)
    used = {
        tag for methods in (*paths.values(), *own.paths.values()) for each in methods.values() for tag in each["tags"]
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": f"The stores of {app}",
            "version": "1",
            "description": "Every answer says which version of the app's state it is from. An error has `error`, a "
            "name that doesn't change, `message` and `what_to_do`.",
        },
        "tags": [{"name": tag, "description": text} for tag, text in TAGS.items() if tag in used],
        "security": [{_TOKEN: []}, {}],  # an app may have no tokens
        "paths": {**paths, **own.paths},
        "components": {
            "schemas": {**components, **own.components},
            "responses": refusal_components(by_type[id(ProblemAnswer)], JSON),
            "securitySchemes": {_TOKEN: {"type": "http", "scheme": "bearer"}},
        },
    }


def _described(operation: Operation, stores: Mapping[str, str], by_type: Mapping[int, Any]) -> dict[str, Any]:
    here = [*stores] if operation.stores is None else [name for name in operation.stores() if name in stores]
    examples = dict(operation.examples)
    if here:
        key = stores[here[0]] if operation.key_example is None else operation.key_example(here[0])
        examples |= {"store": here[0], "key": key}
    answer = {} if operation.answer is None else {"schema": by_type[id(operation.answer)]}
    success: dict[str, Any] = {
        "description": operation.returns,
        "content": {operation.media: answer, **{media: {} for media in operation.other_media}},
    }
    if operation.answer_headers:
        success["headers"] = answer_headers(operation.answer_headers)
    errors = operation.errors if operation.method == "GET" else with_body(operation.errors)
    found: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.text,
        "tags": [operation.tag],
        "parameters": [
            *(_part(name, here, examples) for name in _PART.findall(operation.template)),
            *(_parameter(each, "query", examples) for each in operation.parameters),
            *(_parameter(each, "header", examples) for each in operation.headers),
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
        if operation.body_example is not None and here:
            for media, shown in operation.body_example(here[0], examples["key"]).items():
                content[media]["example"] = shown
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


def _parameter(parameter: Parameter, place: str, examples: Mapping[str, str]) -> dict[str, Any]:
    schema = {"type": "array", "items": parameter.type.schema} if parameter.many else parameter.type.schema
    found = {
        "name": parameter.name,
        "in": place,
        "required": parameter.required,
        "description": parameter.text,
        "schema": schema,
    }
    if parameter.required and parameter.name in examples:  # one that isn't required would be sent by whoever tries it
        text = examples[parameter.name]
        found["example"] = [text] if parameter.many else text
    return found
