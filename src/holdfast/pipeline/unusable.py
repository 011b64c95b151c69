"""SQL that finds unusable records, and makes dead letters from them."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.stores.formats.keys import MAX_KEY_BYTES
from holdfast.stores.formats.types import Field

LONGEST_KEY = MAX_KEY_BYTES // 2 - 64
"""The maximum of a key's text and bytes together. Encoding at most doubles them; the rest is for other columns."""

Case = tuple[str, str]
"""A condition in SQL that is true for an unusable record and never null, and the reason."""


def cases_of(fields: Sequence[Field], timestamp: str | None, wall: int, max_ahead_millis: int) -> list[Case]:
    """The cases of a record without a key, or without an event time that is not too far ahead of the wall clock."""
    missing = " OR ".join(f"{quoted(field.name)} IS NULL" for field in fields)
    names = ", ".join(field.name for field in fields)
    cases = [(missing, f"no key: {'one of ' if len(fields) > 1 else ''}{names} is null")]
    if sizes := [f"octet_length({quoted(field.name)})" for field in fields if field.field_type.is_variable]:
        cases.append((f"{' + '.join(sizes)} > {LONGEST_KEY}", f"the key is longer than {LONGEST_KEY} bytes"))
    if timestamp is not None:
        cases.append((f"{quoted(timestamp)} IS NULL", f"no event time: {timestamp} is null"))
        ahead = f"event time is more than batch.max_ahead ({max_ahead_millis} ms) ahead of the clock"
        limit = wall + max_ahead_millis
        cases.append((f"unix_millis(CAST({quoted(timestamp)} AS timestamp)) > {limit}", ahead))
    return cases


def is_unusable(cases: Sequence[Case]) -> str:
    """SQL that is true for an unusable record."""
    return f"({' OR '.join(condition for condition, _ in cases)})"


def dead_letter(cases: Sequence[Case]) -> str:
    """SQL that is null for a usable record, else JSON with the reason and the record."""
    keep_nulls = "map('ignoreNullFields', 'false')"
    whens = [
        f"WHEN {condition} THEN to_json(struct({_text(reason)} AS reason, struct(*) AS record), {keep_nulls})"
        for condition, reason in cases
    ]
    return f"CASE {' '.join(whens)} END"


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _text(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
