"""Starts an instance as the CLI does, without REST: the configuration is one line of JSON on standard input."""

import sys

import msgspec

from holdfast.instance.process import InstanceConfig, main

if __name__ == "__main__":
    main(msgspec.json.decode(sys.stdin.buffer.readline(), type=InstanceConfig))
