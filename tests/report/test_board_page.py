"""BOARD.md: groups without a rank, every column that is known, and text of others as text."""

import math
from pathlib import Path
from types import SimpleNamespace

import pytest

from fathom.settings import ConfigError
from fathom_study.board.rows import Row, TrackRows, rows_of
from fathom_study.board.track import load_track
from fathom_study.report.judge.forest import Place, forest
from fathom_study.report.pages.render import environment_of, fill
from fathom_study.report.pages.reports import reports_of
from tests.support.runs import config_with

TEMPLATES = Path(__file__).parents[2] / "report" / "templates"
ROW = Row(
    verdict="better", date="2026-12-01", connection="One", who="Jane", answer="at", multiplier=1.2,
    low=1.1, high=1.3, least=0.5, most=2.0, outside=0.0, seeds=8, asked=8, diverged=0, time=1.5,
    operations=1.1, at_width=math.nan, study="released", log="standard/one/JUDGE.md",
    file="standard/one/one.py",
)  # fmt: skip


def page_of(*rows, measured=(), **changes):
    found = rows_of(load_track("standard"), Path("no-board"), (), {}, *rows)._replace(**changes)
    environment = environment_of(TEMPLATES, {"mhc": "mHC", "cpu-a": "An A"})
    return fill(
        environment,
        "BOARD.md.j2",
        board=[found, TrackRows(load_track("gpu"), {}, [])],
        measured=measured,
        docs="docs",
        board_link="board",
    )


def lines_of(page):
    return [line for line in page.splitlines() if line.startswith("| ")]


def test_rows_of_a_group_stand_in_the_order_of_names_whatever_their_numbers():
    page = page_of(
        ROW._replace(connection="Beta", multiplier=1.9),
        ROW._replace(connection="alpha", multiplier=1.1),
        ROW._replace(connection="Gamma", verdict="worse"),
    )
    head, first, second, head_of_worse, third = lines_of(page)
    assert (head, "alpha" in first, "Beta" in second) == (head_of_worse, True, True)
    assert page.index("### Better than plain") < page.index("### Worse than plain")
    assert "Gamma" in third and "### Undecided" not in page
    assert "rank" not in head and "| 1 " not in first


def test_a_row_has_its_costs_its_files_and_who_replicated_it():
    again = ROW._replace(replicated_by=(("Joe", "better"), ("Ann", "undecided")), diverged=1)
    (head, row) = lines_of(page_of(again))
    for part in ("| 1.20 (1.10 to 1.30) |", "| 50 % more | 10 % more |", "| 8 of 8, 1 diverged |",
                 "| Joe, Ann (undecided) |", "[file](board/standard/one/one.py)"):  # fmt: skip
        assert part in row, part
    assert "4096" not in head  # unknown for all rows
    head, row, known = lines_of(page_of(ROW, ROW._replace(connection="Two", at_width=1.02)))
    assert "| at width 4096 |" in head
    assert "| 10 % more | – |" in row and "| 10 % more | 2 % more |" in known


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"answer": "below", "outside": 8.0}, "below 0.5 |"),
        ({"answer": "beyond", "outside": 3.0}, "beyond 2 at 3 of 8 seeds |"),
        ({"answer": "none", "multiplier": math.nan, "seeds": 0}, "| none |"),
        ({"answer": "at", "low": math.nan, "high": math.nan}, "| 1.20 |"),
    ],
)
def test_a_multiplier_without_an_interval_says_what_is_known(changes, text):
    assert text in lines_of(page_of(ROW._replace(**changes)))[1]


def test_a_track_names_the_machine_of_its_step_times_and_how_far_they_scatter():
    costs = (("cpu-a", 2.0, 1.5, 2.2), ("cpu-a", 1.0, 0.9, 1.3), ("", math.nan, math.nan, math.nan))
    fields = ("machine", "cost", "cost_low", "cost_high")
    worth = [dict(zip(fields, row, strict=True)) for row in costs]
    studies = [SimpleNamespace(name=name, worth=lambda: worth) for name in ("released", "state")]
    (line,) = [line for line in page_of(ROW, measured=studies).splitlines() if "timed in" in line]
    assert "on An A." in line and "by up to 30 %" in line


def test_names_of_others_are_text_and_a_withdrawn_row_leaves_a_line():
    hostile = ROW._replace(connection="A|B", who="<b>[x](http://y)")
    page = page_of(hostile, withdrawn=[ROW._replace(withdrawn="a mistake")])
    assert r"A\|B" in page and r"\<b\>\[x\]" in page
    assert "Withdrawn: One, by Jane: a mistake." in page
    assert "**Not open**: no network was trained at this size yet" in page


def test_only_a_config_with_a_board_has_the_page(tmp_path):
    config = config_with(tmp_path)
    assert "BOARD.md" not in [report.name for report in reports_of(config, TEMPLATES)]
    with_board = config.model_copy(update={"board": "board"})
    assert "BOARD.md" in [report.name for report in reports_of(with_board, TEMPLATES)]
    name, study = next(iter(config.studies.items()))
    studies = {name: study.model_copy(update={"part": "armz"})}
    with pytest.raises(ConfigError, match="part: unknown part 'armz'; did you mean 'arms'"):
        reports_of(config.model_copy(update={"studies": studies}), TEMPLATES)


def test_the_figure_of_a_judgement_fits_a_phone_and_keeps_long_names_short():
    own = Place("Own <b>", 1.2, 1.1, 1.3, is_own=True)
    svg = forest([own, Place(f"long {'name ' * 20}end", 0.9, math.nan, math.nan, is_own=False)])
    assert 'viewBox="0 0 360 ' in svg and 'width="100%"' in svg
    assert "Own &lt;b&gt;" in svg and ">long name na…me name end<" in svg
    assert svg.count("<circle") == 2 and svg.count('r="5"') == 1
    outside = forest([own._replace(multiplier=0.85, towards=-1)])
    assert "<circle" not in outside and outside.count("Z") == 1
    assert forest([own._replace(multiplier=math.nan)]) == ""
