"""`fedjax-srp`, and `python -m fedjax_srp`."""

import os
import sys


def main() -> int:
    """Run the command line; Ctrl-C during its import also prints one line."""
    try:
        from fedjax_srp.commands.cli import main as run
    except KeyboardInterrupt:
        os.write(2, b"\nfedjax-srp: interrupted\n")
        os._exit(130)  # partial imports would end with tracebacks
    return run()


if __name__ == "__main__":
    sys.exit(main())
