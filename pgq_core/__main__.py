"""Start the command line: the `pgq-core` script and `python -m pgq_core`."""

import sys
from importlib.util import find_spec


def main() -> None:
    """Run the command line, or say in one sentence how to install what it needs."""
    missing = [name for name in ("click", "rich") if find_spec(name) is None]
    if missing:
        sys.stderr.write(
            f"pgq-core: the command line needs {' and '.join(missing)}; "
            'pip install "pgq-core[cli]"\n'
        )
        sys.exit(2)
    from .cli import main as run

    run()


if __name__ == "__main__":
    main()
