"""Records that can't be used, as SQL: when one is, why, and what of it goes to the dead letters."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.stores.formats.keys import MAX_KEY_BYTES
from holdfast.stores.formats.types import Field

LONGEST_KEY = MAX_KEY_BYTES // 2 - 64
"""Text and bytes of a key together. Encoding at most doubles them, and the other components have room in the rest."""

Case = tuple[str, str]
"""A condition in SQL that is true for a record that can't be used and never null, and why it can't."""


def cases_of(fields: Sequence[Field], timestamp: str | None, wall: int, max_ahead_millis: int) -> list[Case]:
    """A record needs a key, and an event time that is not too far ahead of the wall clock."""
    missing = " OR ".join(f"{quoted(field.name)} IS NULL" for field in fields)
    names = ", ".join(field.name for field in fields)
    cases = [(missing, f"no key: one of {names} is null")]
    if sizes := [f"octet_length({quoted(field.name)})" for field in fields if field.field_type.is_variable]:
        cases.append((f"{' + '.join(sizes)} > {LONGEST_KEY}", f"the key is longer than {LONGEST_KEY} bytes"))
    if timestamp is not None:
        cases.append((f"{quoted(timestamp)} IS NULL", f"no event time: {timestamp} is null"))
        ahead = f"event time is more than batch.max_ahead ({max_ahead_millis} ms) ahead of the clock"
        limit = wall + max_ahead_millis
        cases.append((f"unix_millis(CAST({quoted(timestamp)} AS timestamp)) > {limit}", ahead))
    return cases


def is_unusable(cases: Sequence[Case]) -> str:
    """SQL that is true for a record that can't be used."""
    return f"({' OR '.join(condition for condition, _ in cases)})"


def dead_letter(cases: Sequence[Case]) -> str:
    """SQL that is null for a good record, else JSON: why it can't be used, and the record."""
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
