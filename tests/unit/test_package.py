"""What `sam build` makes of the functions: by default, and for the oldest and newest Python."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MACHINES = {"arm64": (183, "aarch64"), "x86_64": (62, "x86_64")}  # ELF's e_machine, and the tag
# What the runtimes run on: https://docs.aws.amazon.com/lambda/latest/dg/lambda-runtimes.html
GLIBC = {"python3.11": 26, "python3.13": 34, "python3.14": 34}
DEFAULT = ("python3.13", "arm64")
BUILT = [DEFAULT, ("python3.11", "x86_64"), ("python3.14", "x86_64")]

# One process builds for all of them.
pytestmark = [pytest.mark.timeout(120), pytest.mark.xdist_group("package")]

Build = Callable[[str, str], Path]


def handlers(place: Path) -> Path:
    """Make a user's folder of handlers."""
    folder = place / "app"
    (folder / "__pycache__").mkdir(parents=True)
    (folder / "__pycache__" / "jobs.pyc").touch()
    (folder / "jobs.py").write_text("from pgq_core import Tasks\n\ntasks = Tasks()\n")
    return folder


@pytest.fixture
def app(tmp_path: Path) -> Path:
    return handlers(tmp_path)


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Build for a runtime and a processor, once."""
    place = tmp_path_factory.mktemp("packages")
    app = str(handlers(place))

    @cache
    def build(runtime: str, architecture: str) -> Path:
        package = place / f"{runtime}-{architecture}"
        chosen = {"RUNTIME": runtime, "ARCHITECTURE": architecture}
        built = make("build-WorkerFunction", package, TASKS_FOLDER=app, **chosen)
        assert built.returncode == 0, built.stderr
        return package

    return build


def make(
    target: str, into: Path, *extra: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run *target* as sam does: from the root, with ARTIFACTS_DIR."""
    into.mkdir()
    # As from a shell of the user's: whatever make runs these tests is not this one's parent.
    clean = {key: text for key, text in os.environ.items() if not key.startswith("MAKE")}
    return subprocess.run(
        ["/usr/bin/env", "make", "--makefile", ROOT / "Makefile", target, *extra],
        cwd=ROOT,
        env=clean | {"ARTIFACTS_DIR": str(into)} | variables,
        capture_output=True,
        text=True,
        check=False,
    )


def listing(folder: Path) -> dict[str, int]:
    return {
        str(path.relative_to(folder)): path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file()
    }


def glibc(library: bytes) -> int:
    """The newest glibc, 2.*n*, that *library* asks the loader for."""
    return max((int(n) for n in re.findall(rb"GLIBC_2\.(\d+)\b", library)), default=0)


@pytest.mark.parametrize(("runtime", "architecture"), BUILT)
def test_lam_10_the_wheels_match_runtime_and_processor(
    runtime: str, architecture: str, build: Build
) -> None:
    machine, tag = MACHINES[architecture]
    tags = f"cpython-{runtime.removeprefix('python').replace('.', '')}-{tag}-linux-gnu.so"
    libraries = {
        path.name: path.read_bytes() for path in build(runtime, architecture).rglob("*.so*")
    }
    assert {f"_psycopg.{tags}", f"pq.{tags}"} <= libraries.keys()
    assert any(name.startswith("libpq-") for name in libraries)
    for name, library in libraries.items():
        assert int.from_bytes(library[18:20], "little") == machine, name
        assert glibc(library) <= GLIBC[runtime], name
        if ".cpython-" in name:
            assert name.endswith(tags)


def test_the_package_holds_what_it_needs_and_no_more(build: Build) -> None:
    files = listing(build(*DEFAULT))
    names = {name.split("/")[0] for name in files if ".dist-info/" not in name}
    assert names == {
        "app",
        "aws_lambda_powertools",
        "cronsim",
        "functions",
        "jmespath",
        "pgq_core",
        "psycopg",
        "psycopg_binary",
        "psycopg_binary.libs",
        "typing_extensions.py",
        "tzdata",
    }
    assert {"app/jobs.py", "functions/worker.py", "pgq_core/sql/claim.sql"} <= files.keys()
    assert not [name for name in files if name.endswith((".pyc", ".pyi"))]
    assert sum(files.values()) <= 20_000_000


def test_the_three_functions_are_one_package(tmp_path: Path, app: Path) -> None:
    listings = []
    for function in ("Worker", "Reaper", "Migrate"):
        package = tmp_path / function
        built = make(f"build-{function}Function", package, TASKS_FOLDER=str(app))
        assert built.returncode == 0, built.stderr
        listings.append(listing(package))
    assert listings[0] == listings[1] == listings[2]


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the package is imported here")
def test_the_package_imports_on_its_own_and_leaves_boto3_for_later(
    tmp_path: Path, build: Build
) -> None:
    package = build(f"python3.{sys.version_info.minor}", "x86_64")
    program = (
        "import sys, functions.worker, functions.reaper, functions.migrate, psycopg;"
        "from app.jobs import tasks;"
        "assert psycopg.pq.__impl__ == 'binary' and 'boto3' not in sys.modules"
    )
    ran = subprocess.run(
        [sys.executable, "-S", "-c", program],  # -S: nothing installed here can be seen
        cwd=tmp_path,
        env={"PYTHONPATH": str(package)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr


def test_what_the_users_requirements_name_is_packed_too(tmp_path: Path, app: Path) -> None:
    (app / "requirements.txt").write_text("iniconfig\n")
    package = tmp_path / "package"
    built = make("build-WorkerFunction", package, TASKS_FOLDER=str(app))
    assert built.returncode == 0, built.stderr
    assert (package / "iniconfig" / "__init__.py").exists()
    assert (package / "psycopg" / "__init__.py").exists()


@pytest.mark.parametrize(
    ("extra", "variables", "sentence"),
    [
        ([], {}, "TASKS_FOLDER=: expected the folder of your handlers"),
        ([], {"TASKS_FOLDER": "no/such"}, "TASKS_FOLDER=no/such: expected the folder"),
        ([], {"TASKS_FOLDER": "functions"}, "whose name (functions) the package does not have"),
        ([], {"TASKS_FOLDER": "."}, "whose name (.) the package does not have"),
        (["PACKAGE_LIMIT=1000"], {"TASKS_FOLDER": "app"}, "at most 1000 are allowed"),
        (
            [],
            {"TASKS_FOLDER": "app", "RUNTIME": "python3.11", "ARCHITECTURE": "arm64"},
            "python3.11 on arm64",
        ),
    ],
)
def test_a_package_that_could_not_work_fails_the_build(
    extra: list[str], variables: dict[str, str], sentence: str, tmp_path: Path, app: Path
) -> None:
    if variables.get("TASKS_FOLDER") == "app":
        variables = variables | {"TASKS_FOLDER": str(app)}
    built = make("build-WorkerFunction", tmp_path / "package", *extra, **variables)
    assert built.returncode != 0
    assert sentence in built.stderr
