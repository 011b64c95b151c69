"""Starts an instance as the CLI does, without REST: the configuration is one line of JSON on standard input."""

import sys

from holdfast.instance.config import decode
from holdfast.instance.process import main

if __name__ == "__main__":
    main(decode(sys.stdin.buffer.readline()))
