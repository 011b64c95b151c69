"""Errors: all derive from HoldfastError and have a category; retries depend on the category."""

import ast
import importlib
import pickle
import pkgutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

import holdfast
from holdfast.errors import ErrorCategory, HoldfastError, SettingsError, StorageUnavailable
from holdfast.retry import is_retryable, retrying
from holdfast.settings.sections import RetrySettings

SOURCES = sorted(Path(holdfast.__file__).parent.rglob("*.py"))
MODULES = sorted(module.name for module in pkgutil.walk_packages(holdfast.__path__, "holdfast."))
ANSWERS = {"holdfast.query.problems.Problem"}
"""Raised by REST's endpoints as their answer; these never reach a caller in Python."""
QUICK = RetrySettings(attempts=4, first="1ms", longest="4ms")


def exceptions_of(module: str) -> Iterator[type[BaseException]]:
    for item in vars(importlib.import_module(module)).values():
        is_error = isinstance(item, type) and issubclass(item, BaseException) and not issubclass(item, Warning)
        if is_error and item.__module__ == module:
            yield item


@pytest.mark.parametrize("module", MODULES)
def test_every_error_is_a_holdfast_error_with_a_category(module: str) -> None:
    for error in exceptions_of(module):
        if f"{module}.{error.__qualname__}" in ANSWERS:
            continue
        assert issubclass(error, HoldfastError), f"derive {error} from HoldfastError"
        chosen = error is HoldfastError or any("category" in vars(c) for c in error.__mro__ if c is not HoldfastError)
        assert chosen, f"{error} needs a category, which says what a caller can do"


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: str(path.relative_to(SOURCES[0].parent)))
def test_no_builtin_error_is_raised_to_users(source: Path) -> None:
    """Users catch HoldfastError for everything, and every message says what to do."""
    tree = ast.parse(source.read_text())
    caught = {
        name.id
        for handler in ast.walk(tree)
        if isinstance(handler, ast.ExceptHandler) and handler.type is not None
        for name in ast.walk(handler.type)
        if isinstance(name, ast.Name)
    }
    bare = {"Exception", "BaseException", "RuntimeError", "OSError", "ValueError", "TypeError"} - caught
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and node.exc is not None:
            raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            assert not (isinstance(raised, ast.Name) and raised.id in bare), f"{source}:{node.lineno}"


class Flaky:
    """Raises the given errors, one per call, and then returns."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "here"


def away(n: int) -> list[StorageUnavailable]:
    return [StorageUnavailable(f"away {i}") for i in range(n)]


def test_retries_wait_longer_each_time() -> None:
    flaky, waits = Flaky(*away(3)), list[float]()
    assert retrying(flaky, QUICK, sleep=waits.append) == "here"
    assert flaky.calls == 4
    assert all(bound / 2 <= wait <= bound for wait, bound in zip(waits, [0.001, 0.002, 0.004], strict=True))


def test_after_the_last_attempt_its_error_is_raised() -> None:
    flaky = Flaky(*away(9))
    with pytest.raises(StorageUnavailable, match="away 3"):
        retrying(flaky, QUICK, sleep=lambda _: None)
    assert flaky.calls == 4


@pytest.mark.parametrize("error", [SettingsError("wrong"), KeyError("other"), OSError("other")])
def test_other_errors_are_not_retried(error: Exception) -> None:
    flaky = Flaky(error)
    with pytest.raises(type(error)):
        retrying(flaky, QUICK, sleep=lambda _: None)
    assert flaky.calls == 1


def test_a_deadline_replaces_the_number_of_attempts() -> None:
    flaky = Flaky(*away(6))
    assert retrying(flaky, QUICK, deadline=timedelta(seconds=60), sleep=lambda _: None) == "here"
    with pytest.raises(StorageUnavailable, match="away 0"):
        retrying(Flaky(*away(2)), RetrySettings(first="1s"), deadline=timedelta(milliseconds=1))


def test_a_deadline_of_nothing_allows_one_attempt() -> None:
    flaky = Flaky(*away(2))
    with pytest.raises(StorageUnavailable, match="away 0"):
        retrying(flaky, QUICK, deadline=timedelta(0), sleep=lambda _: None)
    assert flaky.calls == 1


def test_retry_settings_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(QUICK)) == QUICK


def test_one_attempt_is_not_retried() -> None:
    with pytest.raises(StorageUnavailable):
        retrying(Flaky(*away(1)), RetrySettings(attempts=1))


@pytest.mark.parametrize("category", ErrorCategory)
def test_only_the_category_retry_is_retryable(category: ErrorCategory) -> None:
    error = type("Some", (HoldfastError,), {"category": category})("some")
    assert is_retryable(error) == (category is ErrorCategory.RETRY)
