"""What tests of a group share."""

import uuid

from holdfast.group.members import Hosted, Member, MemberState
from holdfast.log import documents, names
from holdfast.log.objects import Storage
from holdfast.log.storage import open_storage

LOG = "log-1"


def new_storage() -> Storage:
    return open_storage(f"memory://{uuid.uuid4().hex}")


def member(id: str, beat: int = 1, *, incarnation: int = 1, process: str = "", **fields: object) -> Member:
    made: dict[str, object] = {
        "log": LOG,
        "id": id,
        "incarnation": incarnation,
        "process": process or f"process-{id}",
        "beat": beat,
        "address": f"grpc://{id}:1",
    }
    return Member(**(made | fields))  # type: ignore[arg-type]


def put(storage: Storage, *members: Member) -> None:
    for each in members:
        storage.replace(names.member(each.id), documents.encode(each))


__all__ = ["LOG", "Hosted", "Member", "MemberState", "member", "new_storage", "put"]
