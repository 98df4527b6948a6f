"""`fedjax-srp`, and `python -m fedjax_srp`."""

import os
import signal
import sys


def main() -> int:
    """Run the command line; Ctrl-C during its import also prints one line."""
    # in place of closed streams, as by >&-: else a file takes their numbers, or a pipe of workers
    while (file := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(file, True)
    os.close(file)
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_default:
        signal.signal(signal.SIGINT, _end)
    from fedjax_srp.parts.libraries import MissingLibraryError

    try:
        from fedjax_srp.lab.commands.cli import main as run
    except MissingLibraryError as error:
        print(f"fedjax-srp: error: {error}", file=sys.stderr)
        return 2
    if is_default:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return run()


def _end(*_: object) -> None:
    """End at once: an exception would end with a traceback, and C extensions make an ImportError of it."""
    os.write(2, b"\nfedjax-srp: interrupted\n")
    os._exit(130)


if __name__ == "__main__":
    sys.exit(main())
