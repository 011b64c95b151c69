"""`python -m holdfast` is the `holdfast` command."""

import sys

if __name__ == "__main__":
    if sys.argv[1:] == ["instance"]:
        from holdfast.instance_command import main
    else:
        from holdfast.cli import main
    main()
