"""An instance as a process of its own, with REST: reads its config as one line on standard input."""

import sys

import msgspec

from holdfast.instance.process import InstanceConfig, main
from tests.query.instances import rest

if __name__ == "__main__":
    main(msgspec.json.decode(sys.stdin.buffer.readline(), type=InstanceConfig), rest)
