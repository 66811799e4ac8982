from pathlib import Path

import pytest

from local.ministack import Cloud
from local.sam import build_and_deploy


def test_a_build_that_fails_says_why(tmp_path: Path) -> None:
    nowhere = Cloud(endpoint="http://127.0.0.1:1", log=tmp_path / "none")
    with pytest.raises(RuntimeError, match="folder of your handlers"):
        build_and_deploy(nowhere, stack="shop", tasks_folder=tmp_path / "missing", parameters={})
