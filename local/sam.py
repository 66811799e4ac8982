"""Builds this repository's template and deploys it to the local cloud, by the real `sam`."""

import json
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path

from local.ministack import Cloud
from local.process import Nursery, nursery

ROOT = Path(__file__).parents[1]
SAM = Path(sys.executable).with_name("sam")
RUNTIME = f"python3.{sys.version_info.minor}"
ARCHITECTURE = {"aarch64": "arm64"}.get(platform.machine(), platform.machine())


def environment(cloud: Cloud, tasks_folder: Path, place: Nursery) -> dict[str, str]:
    """Give what sam and the build of the package see: the user's shell, but another cloud."""
    shell = {name: text for name, text in os.environ.items() if not name.startswith("AWS_")}
    return {
        **shell,
        **cloud.environment(),
        "PATH": f"{SAM.parent}:{shell['PATH']}",
        "SAM_CLI_TELEMETRY": "0",
        "TMPDIR": str(place.folder),  # it leaves folders behind
        "__SAM_CLI_APP_DIR": str(place.folder),
        "TASKS_FOLDER": str(tasks_folder.resolve()),
        "RUNTIME": RUNTIME,
        "ARCHITECTURE": ARCHITECTURE,
        "GLIBC": "17 28 34",  # this machine's, not Lambda's, has to load the wheels
    }


def build_and_deploy(
    cloud: Cloud, *, stack: str, tasks_folder: Path, parameters: Mapping[str, str]
) -> dict[str, str]:
    """Deploy the template with the handlers of *tasks_folder*; return the stack's outputs.

    The parameters Runtime and Architecture are this machine's. Raises RuntimeError, with what sam
    said, if it fails.
    """
    own = {"Runtime": RUNTIME, "Architecture": ARCHITECTURE}
    with nursery("sam") as place:
        env = environment(cloud, tasks_folder, place)
        values = place.folder / "parameters.yaml"
        values.write_text(json.dumps({**own, **parameters}))
        overrides = ["--parameter-overrides", f"file://{values}"]
        built = place.folder / "build"
        build: list[str | Path] = [SAM, "build", "-t", ROOT / "template.yaml", "-b", built]
        place.run([*build, *overrides], env=env)
        deploy: list[str | Path] = [SAM, "deploy", "-t", built / "template.yaml"]
        deploy += ["--config-file", ROOT / "samconfig.toml", "--stack-name", stack]
        place.run([*deploy, "--no-confirm-changeset", *overrides], env=env)
    found = cloud.client("cloudformation").describe_stacks(StackName=stack)["Stacks"][0]
    return {output["OutputKey"]: output["OutputValue"] for output in found["Outputs"]}
