"""What was found, as tables: for the terminal and as the page of the documents."""

from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench.articles.checklist import CHECKLIST
from bench.articles.lab import Experiment, Finding

Row = tuple[Experiment, Finding]
Found = Mapping[str, Sequence[Row]]

ROOT = "../.."
HEADS = ("section", "the claim", "measured here", "remark", "as expected")
VERDICT = {True: "yes", False: "**no**"}
PAGE = """# Both articles, reproduced

`make articles`, {seconds:.0f} s: {where}.

Two articles on jobs in Postgres are the origin of this queue. Their statements, word for word, are
in [bench/articles](../../bench/articles); each runs here as the article has it run, and what comes
of it stands beside what the article says. Where an article only describes a change (`'done'` for
`'running'` with pgbench, the two words), it is made to the printed statement. Then come the same
experiments on our own statements. What keeps a serverless compute awake, which the first article
also treats, has a [page of its own](awake.md).

The machine named above is the one of the clients; `DATABASE_URL` may name another server, such as a
branch of production: all of it then runs in a temporary database there.
{parts}
## The first article's checklist

| its point | the tests that hold it |
|---|---|
{checklist}
"""


def show(console: Console, title: str, rows: Sequence[Row]) -> None:
    """Print the table of a part."""
    table = Table(title=title, show_lines=True, title_justify="left")
    for head in HEADS:
        table.add_column(head)
    for of, found in rows:
        verdict = "[green]yes[/]" if found.holds else "[bold red]no[/]"
        table.add_row(*map(escape, (of.section, of.says, found.seen, found.why)), verdict)
    console.print(table)


def show_checklist(console: Console) -> None:
    """Print the points of the checklist."""
    table = Table(title="The first article's checklist", show_lines=True, title_justify="left")
    for head in ("its point", "the tests that hold it"):
        table.add_column(head, overflow="fold")
    for point, tests in CHECKLIST.items():
        table.add_row(point, "\n".join(tests))
    console.print(table)


def line(cells: Iterable[str]) -> str:
    """Write a row of a table."""
    return f"| {' | '.join(cells)} |"


def link(name: str) -> str:
    """Link to the file of a statement."""
    return f"[{name.partition('/')[2]}]({ROOT}/bench/articles/{name}.sql)"


def part(title: str, rows: Sequence[Row]) -> str:
    """Write the section of a part."""
    lines = ["", f"## {title}", ""]
    lines += [line((*HEADS, "statements")), "|---|---|---|---|---|---|"]
    for of, found in rows:
        links = ", ".join(map(link, of.statements))
        verdict = VERDICT[found.holds]
        lines.append(line((of.section, of.says, found.seen, found.why, verdict, links)))
    return "\n".join([*lines, ""])


def tested(name: str) -> str:
    """Link to the file of a test."""
    path, _, test = name.partition("::")
    return f"[{test}]({ROOT}/{path})"


def page(found: Found, where: str, seconds: float) -> str:
    """Write the page."""
    points = (line((point, "<br>".join(map(tested, tests)))) for point, tests in CHECKLIST.items())
    return PAGE.format(
        parts="".join(part(title, rows) for title, rows in found.items()),
        checklist="\n".join(points),
        where=where,
        seconds=seconds,
    )
