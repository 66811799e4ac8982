"""The crash matrix, three of its cells."""

from bench import chaos
from local.postgres import Server


def test_three_cells_lose_nothing_and_repeat_nothing(server: Server) -> None:
    picked = {("SIGKILL", "close"), ("drop", "commit"), ("half-close", "COMMIT")}
    cells = [cell for cell in chaos.cells() if cell[0] in picked]
    ends = chaos.play((server, server), cells)
    assert {key: wrong for key, (_, wrong) in ends.items()} == dict.fromkeys(picked, "")
