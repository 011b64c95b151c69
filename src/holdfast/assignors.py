"""What authors of their own assignors import. docs/operations.md says how to write one."""

from holdfast.group.assignor import assign
from holdfast.group.candidates import Assigned, Candidate, Presence, Wanted
from holdfast.group.generations import Place, Rules
from holdfast.group.members import Hosted
from holdfast.words import TaskId

__all__ = ["Assigned", "Candidate", "Hosted", "Place", "Presence", "Rules", "TaskId", "Wanted", "assign"]
