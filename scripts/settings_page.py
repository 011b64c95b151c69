"""Generates docs/configuration.md from the settings.

    python -m scripts.settings_page > docs/configuration.md

A test compares the page with the settings.
"""

import sys

from holdfast.settings.declare import Section, Setting
from holdfast.settings.load import variable_of
from holdfast.settings.model import Settings, sections
from holdfast.settings.units import RedactedOptions

_INTRODUCTION = """\
# Configuration

All settings are in one typed object, `hf.Settings`. Values come from three sources, and later ones win:

1. **code**: `hf.App("pulse", settings=hf.Settings(...))`. Each group of settings has a class
2. **a file**: `holdfast.toml` in the working directory, or the file named by `HOLDFAST_CONFIG`
3. **the environment**: `HOLDFAST_PARTITIONS=8`, `HOLDFAST_LOG__RETENTION=2h` (two underscores instead of the dot)

```python
>>> import holdfast as hf
>>> log = hf.LogSettings(url="s3://bucket/pulse", retention="2h", options={"region": "eu-central-1"})
>>> app = hf.App("pulse", settings=hf.Settings(partitions=8, log=log))
>>> app.settings.partitions, str(app.settings.log.retention)
(8, '2:00:00')

```

The same settings as a file:

```toml
partitions = 8

[log]
url = "s3://bucket/pulse"
retention = "2h"

[log.options]
region = "eu-central-1"
```

Durations are numbers with units (`us`, `ms`, `s`, `m`, `h`, `d`: `"1h30m"`), and so are sizes (`B`, `KiB`, `MiB`,
`GiB`, `TiB`, or `KB`, `MB` and so on for powers of ten). In the environment, a setting with names and text values is a
JSON object (`HOLDFAST_LOG__OPTIONS='{"region": "eu-central-1"}'`) or one variable per name
(`HOLDFAST_LOG__OPTIONS__REGION`).

An unknown name is refused with the nearest known name, an impossible value with the allowed values.
`holdfast config` prints every setting, its value and where it comes from. Secrets are never shown.
[Storage](storage.md) has the addresses, options and credentials of S3, GCS and Azure.

The last column names the counterpart in Kafka Streams, or says why there is none.
"""


def page() -> str:
    """The whole page."""
    parts = [_INTRODUCTION, _part("The app: `hf.Settings`", Settings)]
    parts += [_part(f"`{name}`: `hf.{section.__name__}`", section) for name, section in sections().items()]
    return "\n".join(parts)


def _part(title: str, section: type[Section]) -> str:
    about = (section.__doc__ or "").splitlines()[0]
    rows = [_row(section.path(name), setting) for name, setting in section.declared().items()]
    head = "| setting | default | allowed values | meaning | in Kafka Streams |\n|---|---|---|---|---|"
    return f"## {title}\n\n{about}\n\n{head}\n" + "\n".join(rows) + "\n"


def _row(name: str, setting: Setting) -> str:
    empty = setting.default is None or (isinstance(setting.default, RedactedOptions) and not setting.default)
    default = "not set" if empty else f"`{setting.show(setting.default)}`"
    variable = f"<br>`{variable_of(name)}`"
    return f"| `{name}`{variable} | {default} | {setting.allowed} | {setting.meaning} | {setting.kafka} |"


if __name__ == "__main__":
    sys.stdout.write(page())
