"""`fedjax-srp`, and `python -m fedjax_srp`."""

import os
import sys


def main() -> int:
    """Run the command line; Ctrl-C while it is imported is one line too."""
    try:
        from fedjax_srp.commands.cli import main as run
    except KeyboardInterrupt:
        os.write(2, b"\nfedjax-srp: interrupted\n")
        os._exit(130)  # as what is imported in part would end with tracebacks
    return run()


if __name__ == "__main__":
    sys.exit(main())
