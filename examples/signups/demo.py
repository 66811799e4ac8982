"""Start `make demo`.

USERS=path names another CSV file than the one beside this. Exits with 0 if all is as it must be, 1
if not, 2 if there are no users, 130 if interrupted.
"""

import sys


def main() -> int:
    """Run the demo; return the exit code."""
    try:
        from .play import play  # here, so that interrupting the imports is one sentence too

        return play()
    except KeyboardInterrupt:
        print("demo: interrupted: every process is ended, every folder removed", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
