"""Starts an instance with REST, as the CLI does. Its configuration is one line on standard input."""

import sys

from holdfast import lean

if __name__ == "__main__":
    lean.share_one_allocator()
    lean.leave_pandas_out()
    from holdfast.instance.config import decode
    from holdfast.instance.process import main
    from holdfast.query.service import RestService

    main(decode(sys.stdin.buffer.readline()), RestService)
