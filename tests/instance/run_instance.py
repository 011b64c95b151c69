"""Starts an instance as the CLI does, without REST: the configuration is one line of JSON on standard input."""

import sys

from holdfast import lean

if __name__ == "__main__":
    lean.share_one_allocator()
    lean.leave_pandas_out()
    from holdfast.instance.config import decode
    from holdfast.instance.process import main

    main(decode(sys.stdin.buffer.readline()))
