"""Next steps of refusals in Python: arguments and methods of a client, instead of headers and paths of REST.

`Refused.what_to_do` stays as the instance has written it.
"""

import re
from typing import Final

_PATH: Final = re.compile(r"/v1/stores/[^/ ]+/(keys|range|windows|sessions|history|rank|top)(/\{key\})?[^,. ]*")
_OF_ALL: Final = {"keys": "get_many", "windows": "all_windows", "sessions": "all_sessions"}
_OF_ONE: Final = {"keys": "get"}
_TOKENS: Final = ("token_missing", "token_unknown", "token_expired")


def in_python(error: str, what_to_do: str) -> str:
    """What to do about a problem of this name.

    >>> in_python("wrong_kind", "Ask /v1/stores/plays/windows/{key}?from=&to=, /v1/stores/plays/range?from=&to=.")
    'Ask .windows(key), .range().'
    >>> in_python("token_missing", "Send the header Authorization: Bearer TOKEN.")
    'Give the client a token of this app: hf.Client(..., token=...).'
    """
    if error in _TOKENS:
        return "Give the client a token of this app: hf.Client(..., token=...)."
    return _PATH.sub(_call, what_to_do) if error == "wrong_kind" else what_to_do


def _call(path: re.Match[str]) -> str:
    query, key = path.groups()
    names = _OF_ONE if key else _OF_ALL
    return f".{names.get(query, query)}({'key' if key else ''})"
