"""A release of the soak's app: what its code has beside the store `totals` with its sink."""

from dataclasses import dataclass, fields, replace


@dataclass(frozen=True)
class Release:
    """What the code of a release has.

    >>> str(Release(levels=True, copy=True, returned="continue"))
    'levels+copy/continue'
    >>> Release.parse("best/start_over")
    Release(levels=False, best=True, copy=False, returned='start_over')
    """

    levels: bool = False
    """A second store, with a sink."""
    best: bool = False
    """One more aggregate in `totals`."""
    copy: bool = False
    """A second sink of `totals`."""
    returned: str = "start_over"
    """What `levels` does if it comes back with this release."""

    @classmethod
    def parse(cls, text: str) -> "Release":
        parts, _, returned = text.partition("/")
        return cls(**dict.fromkeys(filter(None, parts.split("+")), True), returned=returned)

    def __str__(self) -> str:
        parts = [field.name for field in fields(self) if getattr(self, field.name) is True]
        return f"{'+'.join(parts)}/{self.returned}"

    def changed(self, part: str, returned: str) -> "Release":
        """The release with one part more or less; the same parts if `part` is empty."""
        other = replace(self, returned=returned)
        return replace(other, **{part: not getattr(self, part)}) if part else other  # type: ignore[arg-type]


EVERYTHING = Release(levels=True, best=True, copy=True, returned="continue")
