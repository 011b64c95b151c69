"""docs/configuration.md, written from the settings themselves so that it can't drift.

    python -m holdfast.settings.page > docs/configuration.md

A test compares the two.
"""

import sys

from holdfast.settings.declare import Section, Setting
from holdfast.settings.load import variable_of
from holdfast.settings.model import Settings, sections
from holdfast.settings.units import RedactedOptions

_INTRODUCTION = """\
# Configuration

One typed object, `hf.Settings`, holds every setting. Values come from three places, and the later one wins:

1. **code**: `hf.App("pulse", settings=hf.Settings(partitions=8, log=hf.LogSettings(retention="2h")))`
2. **a file**: `holdfast.toml` in the working directory, or the one that `HOLDFAST_CONFIG` names
3. **the environment**: `HOLDFAST_PARTITIONS=8`, `HOLDFAST_LOG__RETENTION=2h` (two underscores for the dot)

```toml
partitions = 8

[log]
url = "s3://bucket/pulse"
retention = "2h"

[log.options]
region = "eu-central-1"
```

Durations are numbers with units (`us`, `ms`, `s`, `m`, `h`, `d`: `"1h30m"`), sizes likewise (`B`, `KiB`, `MiB`, `GiB`,
`TiB`, or `KB`, `MB` and so on for powers of ten). In the environment a group of names and texts is a JSON object
(`HOLDFAST_LOG__OPTIONS='{"region": "eu-central-1"}'`), or one variable a name (`HOLDFAST_LOG__OPTIONS__REGION`).

A name that doesn't exist or a value that can't be is refused at start, with the nearest right name or what is allowed.
`holdfast config` prints the values that hold and where each comes from; secrets are never shown.

Beside each setting stands the Kafka Streams property it answers to, or why there is none.
"""


def page() -> str:
    """The whole page."""
    parts = [_INTRODUCTION, _part("The app", Settings)]
    parts += [_part(f"`{name}`", section) for name, section in sections().items()]
    return "\n".join(parts)


def _part(title: str, section: type[Section]) -> str:
    about = (section.__doc__ or "").splitlines()[0]
    rows = [_row(section.path(name), setting) for name, setting in section.declared().items()]
    head = "| setting | default | what it may be | meaning | in Kafka Streams |\n|---|---|---|---|---|"
    return f"## {title}\n\n{about}\n\n{head}\n" + "\n".join(rows) + "\n"


def _row(name: str, setting: Setting) -> str:
    empty = setting.default is None or (isinstance(setting.default, RedactedOptions) and not setting.default)
    default = "nothing" if empty else f"`{setting.show(setting.default)}`"
    about = setting.about
    kafka = f"`{about.kafka}`" if about.kafka else f"none: {about.why_none}"
    variable = f"<br>`{variable_of(name)}`"
    return f"| `{name}`{variable} | {default} | {setting.allowed} | {about.meaning} | {kafka} |"


if __name__ == "__main__":
    sys.stdout.write(page())
