"""`GET /v1/routing`: the stores and the places of their replicas, for clients that ask the owner of a key directly.

An instance answers it from memory, also while it restores or is overloaded: a client that looks for another instance
must find one.
"""

from collections.abc import Callable
from typing import Final

from starlette.responses import Response

from holdfast.instance.addresses import rest_address
from holdfast.instance.instance import Instance
from holdfast.query.grants import visible
from holdfast.query.health import AppStateInfo
from holdfast.query.operations import Call, Operation
from holdfast.query.problems import json_response
from holdfast.query.reader import StoreReader
from holdfast.query.routes import Places, Routing, StoreRoute

NOWHERE: Final = Places()


def places_of(instance: Instance, url: str) -> Places:
    """Where replicas are. An instance without a group knows of its own ones; `url` is where it answers."""
    generation = instance.placement
    if generation is None:
        own: tuple[str, ...] = (instance.config.name,)
        hosted = {str(each.replica.task): own for each in instance.hosted()}
        return Places(instances={instance.config.name: rest_address(instance.config, url)}, tasks=hosted)
    instances = {name: rest for name, member in generation.members.items() if (rest := member.rest) is not None}
    tasks = {
        # A replica that is only being warmed up can't answer yet.
        task: tuple(name for name in (place.active, *place.standbys) if name in instances)
        for task, place in generation.tasks.items()
    }
    return Places(generation=generation.number, instances=instances, tasks=tasks)


def routing_operations(
    reader: StoreReader, state: Callable[[], AppStateInfo], places: Callable[[], Places]
) -> list[Operation]:
    """The operation of the path."""

    async def routing(call: Call) -> Response:
        return json_response(_answer(call, reader, state().version, places()))

    return [
        Operation(
            "get_routing",
            "/v1/routing",
            "Where the replicas of each task are.",
            routing,
            Routing,
            tag="The app",
            returns="The stores with their keys, the instances with their addresses, and who has which task.",
        ),
    ]


def _answer(call: Call, reader: StoreReader, version: int, places: Places) -> Routing:
    app = reader.app
    shown = visible(call.request.scope, [spec.name for spec in reader.specs.all()])
    stores = tuple(
        StoreRoute(
            store=spec.name,
            kind=spec.kind,
            key=spec.key,
            subtopology=app.number_of(spec.name),
            partitions=spec.partitions(app.partitions),
            everywhere=spec.everywhere,
        )
        for spec in map(reader.specs.__getitem__, shown)
    )
    # A token is told where the stores are that it may read; a client may ask any instance for them.
    tasks = {route.task(partition) for route in stores for partition in range(route.partitions)}
    return Routing(
        app=app.id,
        log=app.log,
        version=version,
        generation=places.generation,
        stores=stores,
        instances=places.instances,
        tasks={task: names for task, names in places.tasks.items() if task in tasks},
    )
