"""Starts an instance with REST. Its configuration is one line on standard input."""

import sys

from holdfast.instance.config import decode
from holdfast.instance.process import main
from holdfast.query.service import RestService

if __name__ == "__main__":
    main(decode(sys.stdin.buffer.readline()), RestService)
