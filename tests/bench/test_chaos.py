"""The crash matrix, three of its cells, and its proxy."""

from bench import chaos
from local.postgres import Server, postgres


def test_three_cells_lose_nothing_and_repeat_nothing() -> None:
    picked = {("SIGKILL", "outlook"), ("drop", "commit"), ("half-close", "COMMIT")}
    cells = [cell for cell in chaos.cells() if cell[0] in picked]
    calm: Server
    shaken: Server
    with postgres() as calm, postgres() as shaken:
        ends = chaos.play((calm, shaken), cells)
    assert {key: wrong for key, (_, wrong) in ends.items()} == dict.fromkeys(picked, "")
