from pathlib import Path

import pytest

from local.ministack import Cloud, ministack
from local.sam import build_and_deploy

PARAMETERS = {
    "TasksModule": "shop.jobs:tasks",
    "DatabaseUrl": "postgresql://nobody@127.0.0.1:1/none",
    "AppSettings": """{"text": "a b 'c' = d"}""",
}


def deploy(cloud: Cloud, tasks_folder: Path) -> dict[str, str]:
    return build_and_deploy(cloud, stack="shop", tasks_folder=tasks_folder, parameters=PARAMETERS)


@pytest.mark.timeout(180)
def test_a_deployed_stack_holds_the_users_handlers(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "jobs.py").write_text("from pgq_core import Tasks\ntasks = Tasks()\n")
    with ministack() as cloud:
        outputs = deploy(cloud, folder)
        found = cloud.client("lambda").get_function(FunctionName=outputs["WorkerName"])
    variables = found["Configuration"]["Environment"]["Variables"]
    assert outputs["WorkerName"] == "shop-worker"
    assert variables["PGQ_TASKS"] == "shop.jobs:tasks"
    assert variables["APP_SETTINGS"] == PARAMETERS["AppSettings"]


@pytest.mark.timeout(180)
def test_a_build_that_fails_says_why(tmp_path: Path) -> None:
    with ministack() as cloud, pytest.raises(RuntimeError, match="folder of your handlers"):
        deploy(cloud, tmp_path / "missing")
