"""What a task's result is expected to be."""

from holdfast.pipeline.results import TaskDone, TaskRefused, TaskResult


def done(result: TaskResult) -> TaskDone:
    assert isinstance(result, TaskDone), result
    return result


def refusal(result: TaskResult) -> TaskRefused:
    assert isinstance(result, TaskRefused), result
    return result
