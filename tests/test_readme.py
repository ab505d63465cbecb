"""README.md's findings: every number that it links to a row of the reference is in that row."""

import csv
import re
from collections import Counter
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]
README = (PROJECT / "README.md").read_text(encoding="utf-8")
REFERENCE = PROJECT / "results" / "reference"

LINKED = re.compile(r"\[([^\]]*)\]\((results/reference/tables/[a-z_]+\.csv)#L([0-9]+)\)")
NUMBER = re.compile(r"[-−]?[0-9]+(?:\.[0-9]+)?(?:e[-−]?[0-9]+)?")


def row_of(file: str, line: str) -> list[str]:
    """The fields of a line of a table; the header is the first line."""
    with (PROJECT / file).open(encoding="utf-8", newline="") as table:
        return list(csv.reader(table))[int(line) - 1]


def is_shown(text: str, value: float) -> bool:
    """Whether a number as written is the value, rounded to as many digits."""
    shown = float(text.replace("−", "-"))
    mantissa, _, exponent = text.partition("e")
    decimals = len(mantissa.partition(".")[2])
    unit = 10.0 ** (int(exponent.replace("−", "-") or 0) - decimals)
    # A share is written in per cent, and half of an interval as what lies to both sides.
    return any(abs(shown - x) <= 0.5001 * unit for x in (value, 100 * value))


def numbers_in(fields: list[str]) -> list[float]:
    found = []
    for field in fields:
        found += [float(n.replace("−", "-")) for n in NUMBER.findall(field)]
    return found


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ("0.12", 0.1234, True),
        ("0.13", 0.1234, False),
        ("−1.5e−06", -1.52e-6, True),
        ("95", 0.9534, True),
        ("27.35", 27.3549, True),
    ],
)
def test_a_number_is_compared_at_the_digits_that_it_shows(
    text: str, value: float, expected: bool
) -> None:
    assert is_shown(text, value) is expected


def test_every_number_that_leads_to_a_row_is_in_that_row() -> None:
    links = LINKED.findall(README)
    assert len(links) >= 10, "the findings lead to the tables that they rest on"
    for text, file, line in links:
        values = numbers_in(row_of(file, line))
        for number in NUMBER.findall(text):
            assert any(is_shown(number, value) for value in values), (text, file, line)


def test_the_scorecard_counts_the_verdicts_of_the_reference() -> None:
    with (REFERENCE / "tables" / "verdicts.csv").open(encoding="utf-8", newline="") as table:
        rows = list(csv.DictReader(table))
    header, _, *lines = re.findall(r"^\|(.*)\|$", README.partition("## What it found")[2], re.M)
    verdicts = [cell.strip() for cell in header.split("|")][1:]
    assert verdicts == ["reproduced", "not reproduced", "contradicted", "not measured"]
    shown = Counter()
    for line in lines[: len({row["source"] for row in rows})]:
        source, *counts = (cell.strip() for cell in line.split("|"))
        shown.update({(source, v): int(n) for v, n in zip(verdicts, counts, strict=True)})
    titles = titles_of_sources()
    assert shown == Counter((titles[row["source"]], row["verdict"]) for row in rows)


def titles_of_sources() -> dict[str, str]:
    import yaml

    data = yaml.safe_load((PROJECT / "report" / "published.yaml").read_text(encoding="utf-8"))
    return {name: source["title"] for name, source in data["sources"].items()}
