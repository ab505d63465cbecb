"""Reports: what templates may say, numbers as text, links to rows, and sentences that follow."""

import csv
import math
import os
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fathom.analysis.attribution import write_attribution
from fathom.analysis.claims import load_published, write_claims
from fathom.analysis.effects import write_effects
from fathom.analysis.tables import comparison_table, save_tables, summary_table
from fathom.config import check_config
from fathom.report.numbers import (
    factor,
    largest,
    number,
    percent,
    plus_minus,
    ratio,
    with_interval,
)
from fathom.report.render import (
    TELLINGS,
    check_numbers,
    environment_of,
    paragraphs,
    write_reports,
)
from fathom.report.views import StudyView, VerdictsView, left_out
from fathom.settings import ConfigError
from run_helpers import CPU_PLATFORM, GPU_PLATFORM, config_with
from tables_helpers import CHANCE, curve, frame, groundless, run

NAN, INF = math.nan, math.inf


# --- what a template may say -----------------------------------------------------------------


@pytest.fixture
def prose(tmp_path):
    """A function that checks a template of these lines."""
    (tmp_path / "studies").mkdir()

    def check(*lines, name="PAGE.md.j2"):
        (tmp_path / name).write_text("\n".join(lines), encoding="utf-8")
        check_numbers(tmp_path)

    return check


def refused(prose, *lines):
    with pytest.raises(ConfigError) as caught:
        prose(*lines)
    return str(caught.value).splitlines()


@pytest.mark.parametrize(
    "text",
    [
        "The loss is 4.",
        "0.5 nats",
        "x2",
        "L2",
        "10^-0.6",
        "48L",
        "| 3 |",
        "1. First",
        "#1",
        "a loss of `4`",
        "the column `H_2`",
        "`log10`",
    ],
)
def test_a_number_typed_by_hand_is_refused(prose, text):
    for line in refused(prose, "Fine.", "", text):
        assert "PAGE.md.j2: line 3: the number " in line


@pytest.mark.parametrize(
    "text",
    [
        "{{ 4 }}",
        "the {{ '`log10`' }} of it",
        "{% if x == 3 %}{% endif %}",
        "{% set rows = rows_of(\n  4\n) %}",
        "{# 2 is a comment #}",
        "{#\n 2 lines\n#}",
        "[figure](figures/48l.png)",
        "![figure](figures/48l.png)",
        '<a id="claim-2"></a>',
    ],
)
def test_links_and_expressions_may_hold_them(prose, text):
    prose(text)


def test_a_number_beside_an_expression_is_found(prose):
    (line,) = refused(prose, "{{ 3 }} of 7 {{ '`4`' }}")
    assert "the number 7 " in line


def test_lines_are_counted_through_expressions(prose):
    (line,) = refused(prose, "{#\n\n#}", "{{ x(\n1\n) }}", "9")
    assert "line 7" in line


def test_every_find_of_every_template_is_named(prose):
    prose("Fine.", name="macros.j2")
    lines = refused(prose, "One is 1.", "Two is 2, 3 is 3.")
    found = [re.search(r"line (\d): the number (\d)", line).groups() for line in lines]
    assert found == [("1", "1"), ("2", "2"), ("2", "3"), ("2", "3")]


@pytest.mark.parametrize("name", ["macros.j2", "studies/sweep.j2"])
def test_macros_are_checked_too(prose, name):
    with pytest.raises(ConfigError, match=rf"{name}: line 1"):
        prose("4", name=name)


def test_the_shipped_templates_pass(pytestconfig):
    check_numbers(pytestconfig.rootpath / "report/templates")


def test_paragraphs_are_what_blank_lines_separate():
    assert paragraphs("\n One\n and a half.\n  \n\n\nTwo. \n") == ["One and a half.", "Two."]
    assert paragraphs(" \n\n") == []


# --- numbers as text -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mean", "half", "text"),
    [
        (0.5, 0.012, "0.500 ± 0.012"),
        (4.1714, 0.0759, "4.171 ± 0.076"),
        (1.7115, 1.4, "1.7 ± 1.4"),
        (130.2, 19.4, "130 ± 19"),
        (-0.59718, 0.00158, "−0.5972 ± 0.0016"),
        (-13.59, 0.183, "−13.59 ± 0.18"),
        (0.0, 0.1, "0.00 ± 0.10"),
        # Wider than the mean.
        (0.5, 30.0, "0 ± 30"),
        (0.012, 0.34, "0.01 ± 0.34"),
        # Far narrower: five digits of the mean, no more.
        (-0.602059, 1e-9, "−0.60206 ± <0.00001"),
        (27.347123, 1e-7, "27.347 ± <0.001"),
        (12345.678, 0.001, "12346 ± <1"),
        # A constant.
        (0.0, 0.0, "0 ± 0"),
        (-0.6020599, 0.0, "−0.60206 ± 0"),
        # Beyond what is read as it is: powers of ten.
        (0.0034, 0.00051, "0.00340 ± 0.00051"),
        (0.00034, 0.000051, "(3.40 ± 0.51)·10^−4"),
        (1e-7, 2e-9, "(1.000 ± 0.020)·10^−7"),
        (-2.5e-12, 3.1e-13, "(−2.50 ± 0.31)·10^−12"),
        (1234567.0, 1000.0, "(1.2346 ± 0.0010)·10^6"),
        (3e20, 4e19, "(3.00 ± 0.40)·10^20"),
        # No interval: fewer than three values.
        (0.0034567, NAN, "0.00346"),
        (-12.3456, NAN, "−12.3"),
        (0.0, NAN, "0"),
        # No mean.
        (NAN, NAN, "NaN"),
    ],
)
def test_mean_and_interval_by_hand(mean, half, text):
    assert plus_minus(mean, half) == text


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ((0.5, 0.012, 3, 3), "0.500 ± 0.012"),
        ((0.5, NAN, 1, 1), "0.5"),
        ((0.5, NAN, 2, 3), "0.5 (NaN: 1 of 3)"),
        ((0.5, NAN, 1, 3), "0.5 (NaN: 2 of 3)"),
        ((0.5, 0.012, 3, 5), "0.500 ± 0.012 (NaN: 2 of 5)"),
        ((0.5, 0.0, 3, 5), "0.5 ± 0 (NaN: 2 of 5)"),
        ((1e-7, 2e-9, 3, 4), "(1.000 ± 0.020)·10^−7 (NaN: 1 of 4)"),
        ((NAN, NAN, 0, 3), "NaN (3 of 3)"),
        ((NAN, NAN, 0.0, 3.0), "NaN (3 of 3)"),  # as a CSV with gaps gives them
    ],
)
def test_values_that_are_not_finite_are_counted(values, text):
    assert plus_minus(*values) == text


@pytest.mark.parametrize(
    ("values", "text"),
    [
        # Even to 1.2: with the longer side.
        ((3.0, 2.0, 4.0), "3.0 ± 1.0"),
        ((-0.602, -0.612, -0.592), "−0.602 ± 0.010"),
        ((1.0, 1 / 1.19, 1.19), "1.00 ± 0.19"),
        ((0.0036, 0.00325, 0.004), "0.00360 ± 0.00040"),
        ((0.5, 0.5, 0.5), "0.5 ± 0"),
        ((0.0, 0.0, 0.0), "0 ± 0"),
        # Both ends.
        ((1.0, 1 / 1.21, 1.21), "1.0 (0.83 to 1.2)"),
        ((7.1, 2.9, 17.0), "7.1 (2.9 to 17)"),
        ((0.42, 0.0, 1.0), "0.42 (0 to 1.0)"),
        ((0.99977, 0.99937, 1.0), "0.99977 (0.99937 to 1.0000)"),
        ((123.0, 83.4, 180.9), "120 (83 to 180)"),
        ((1e-5, 1e-7, 1e-3), "1.0·10^−5 (1.0·10^−7 to 0.0010)"),
        ((2e5, 9.96e4, 4e5), "2.0·10^5 (1.0·10^5 to 4.0·10^5)"),
        # As many digits as plus_minus has: no more could be seen.
        ((1.0, 0.99995, 1.0), "1.0000 ± <0.0001"),
        # Not all finite, or no interval.
        ((7.1, 2.9, 17.0, 3, 5), "7.1 (2.9 to 17) (NaN: 2 of 5)"),
        ((7.1, NAN, NAN, 2, 2), "7.1"),
        ((NAN, NAN, NAN, 0, 3), "NaN (3 of 3)"),
    ],
)
def test_a_mean_with_the_ends_of_its_interval_by_hand(values, text):
    assert with_interval(*values) == text


SHOWN = re.compile(r"\(?([−0-9.]+) ± (<?)([0-9.]+)\)?(?:·10\^(−?[0-9]+))?")
mantissas = st.floats(1, 9.999)
exponents = st.integers(-30, 30)


@given(mantissas, exponents, mantissas, st.integers(-12, 0), st.sampled_from([1, -1]))
def test_what_is_shown_is_the_number_rounded(m, e, width, below, sign):
    mean, half = sign * m * 10.0**e, width * 10.0 ** (e + below)
    centre, less, shown, power = SHOWN.fullmatch(plus_minus(mean, half)).groups()
    scale = 10.0 ** int((power or "0").replace("−", "-"))
    unit = 10.0 ** -len(centre.partition(".")[2]) * scale
    # Half a unit of the last digit, and a little for the decimal fractions themselves.
    rounding = 0.5001 * unit
    assert abs(float(centre.replace("−", "-")) * scale - mean) <= rounding
    if less:
        assert half < float(shown) * scale
    else:
        assert abs(float(shown) * scale - half) <= rounding


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (3.14159, 3, "3.14"),
        (0.5, 3, "0.5"),
        (-0.602, 3, "−0.602"),
        (1234.5, 3, "1.23e+03"),
        (3.3e-07, 2, "3.3e−07"),
        (0, 3, "0"),
        (48, 3, "48"),
        (INF, 3, "inf"),
        (NAN, 3, "NaN"),
        (None, 3, "NaN"),
    ],
)
def test_a_number_in_few_digits(value, digits, text):
    assert number(value, digits) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (1.0, "100 %"), (0.996, "100 %"), (0.934, "93 %"), (0.0151, "2 %"), (0.0051, "1 %"),
        (0.0049, "<0.5 %"), (1e-12, "<0.5 %"), (0.0, "<0.5 %"), (-1e-17, "<0.5 %"), (NAN, "NaN"),
    ],
)  # fmt: skip
def test_a_share_as_a_percentage(share, text):
    assert percent(share) == text


@pytest.mark.parametrize(
    ("values", "expected"), [([1.0, 3.0, 2.0], 3), ([NAN, 1.0], 1), ([NAN], NAN), ([], NAN)]
)
def test_the_largest_finite_value(values, expected):
    rows = [{"x": value} for value in values]
    assert largest(rows, "x") == pytest.approx(expected, nan_ok=True)


def test_what_is_left_out_is_grouped():
    stale = {"status": "stale", "reason": "code differs"}
    rows = [run(), *(run(seed=s, **stale) for s in (1, 2)), run(backend="mlx", status="missing")]
    groups = left_out(frame(rows))
    assert [(g["backend"], g["status"], g["reason"], g["cells"]) for g in groups] == [
        ("torch", "stale", "code differs", 2),
        ("mlx", "missing", "", 1),
    ]


# --- what a template may ask of a study ------------------------------------------------------


def view_of(*rows, **changes):
    """The view of study a, with these runs."""
    cells = frame(*rows)
    tables = {"cells": cells, "summary": summary_table(cells)}
    return StudyView("a", config_with(**changes).studies["a"], tables)


def test_a_study_knows_what_was_measured_of_it():
    view = view_of(
        run(variant="mhc", depth=16), run(variant="baseline", depth=4), run(study="b", depth=99),
        run(variant="mhc", depth=16, seed=1), run(backend="mlx", status="stale"),
    )  # fmt: skip
    assert view.is_measured
    assert view.variants == ["baseline", "mhc"]  # in the config's order, without hc
    assert view.depths == [4, 16]
    assert view.seeds == 2  # of 16 layers
    assert [place.label for place in view.places] == ["torch"]
    assert view.backends_not_run == ["mlx"]
    assert not view_of(run(study="b")).is_measured


def test_what_failed_is_counted_over_all_places():
    gpu = {"platform": GPU_PLATFORM, "origin": "imported", "status": "imported"}
    view = view_of(
        run(), run(seed=1, outcome="diverged"), run(seed=2, outcome="at chance"),
        run(outcome="at chance", **gpu), run(outcome="diverged", depth=16),
    )  # fmt: skip
    assert view.failed("mhc", 8) == (3, 4)
    assert view.failed("mhc", 16) == (1, 1)
    assert view.failed("hc", 8) == (0, 0)
    told = [(row["depth"], row["place"].origin) for row in view.failures()]
    assert told == [(8, "here"), (8, "imported"), (16, "here")]


def test_only_runs_that_did_not_learn_are_failures():
    view = view_of(run(), run(depth=4, outcome="at chance"), run(depth=16, outcome="diverged"))
    assert [row["depth"] for row in view.failures()] == [4, 16]


def test_an_overflow_is_told_by_the_first_place_that_has_one():
    view = view_of(
        run(loss_final=1.0),
        run(backend="mlx", overflow_layer=30, loss_final=2.0),
        run(depth=16, loss_final=3.0),
    )
    assert view.first_row("mhc", 8)["loss_final_mean"] == 2
    assert view.first_row("mhc", 16)["loss_final_mean"] == 3
    assert view.first_row("hc", 8) is None


def test_the_largest_is_of_runs_that_learned():
    def of(size, **axes):
        return run(stream_difference_max=size, grad_norm_H_res_max=size, grad_norm_max=size, **axes)

    view = view_of(of(1.0), of(2.0, seed=1), of(9.0, seed=2, outcome="diverged"))
    assert set(view.largest("mhc").values()) == {2.0}
    assert view.largest("hc") is None


def test_a_mean_that_prints_alike_everywhere_is_told_once():
    alike = run(loss_final=0.50004), run(backend="mlx", loss_final=0.49996)
    apart = run(loss_final=0.3, depth=16), run(backend="mlx", loss_final=0.4, depth=16)
    view = view_of(*alike, *apart)
    assert view.mean_text("mhc", 8, "loss_final") == "0.5"
    assert view.mean_text("mhc", 16, "loss_final") == "0.3 / 0.4"
    assert view.depths_of("hc") == []


def test_a_value_is_a_mean_or_what_stood_in_its_way():
    view = view_of(
        run(study="b"),
        run(loss_final=0.5, stream_similarity_min=None),
        run(depth=16, loss_final=None),
    )
    (place,) = view.places
    assert view.value(8, "mhc", place, "loss_final") == "[0.5](tables/summary.csv#L3)"
    assert view.value(16, "mhc", place, "loss_final") == "[NaN (1 of 1)](tables/summary.csv#L4)"
    assert view.value(8, "mhc", place, "stream_similarity_min") == "none"
    assert view.value(8, "hc", place, "loss_final") == "not run here"


def test_the_scale_of_a_study_by_hand():
    view = view_of(run(), batch_size={4: 32, 8: 24, 16: 8})
    assert view.scale == (
        "V 64, T 8, D 16, H 4, F 32, S 4, B 32 at 4L / 24 at 8L / 8 at 16L, 3 steps, "
        "lr 0.002 (constant), decay 0"
    )


def claim_row(claim, verdict, **values):
    return {"claim": claim, "verdict": verdict, "scale": NAN, "confidence": 0.95, **values}


def test_scales_and_tests_are_those_of_what_was_measured():
    claims = pd.DataFrame(
        [
            claim_row("a", "reproduced", scale="width 16 for 256"),
            claim_row("a", "not reproduced", scale="width 16 for 256", confidence=NAN),
            claim_row("a", "not measured", scale="width 16 for 512", confidence=NAN),
            claim_row("b", "contradicted"),
        ]
    )
    view = VerdictsView(pd.DataFrame(columns=["claim"]), claims)
    assert view.scales_of("a") == ["width 16 for 256"]
    assert view.scales_of("b") == []
    assert (view.tests, view.tests_with_interval) == (3, 2)
    assert view.expected_by_chance == pytest.approx(0.1)


# --- a whole report --------------------------------------------------------------------------

DEPTHS = [12, 24, 48]


def study_config(results, **changes):
    """The published sweep's two studies, with three seeds; `changes` as in config_with."""
    b = {"recipe": "torch-defaults", **changes.pop("depth-torch", {})}
    names = ("depth-mlx", "depth-torch")
    return config_with(results, names, **{"depths": DEPTHS, "depth-torch": b, **changes})


SPREAD = {"baseline": (1.1, 1.3, 1.2), "hc": (1.2, 0.9, 1.1), "mhc": (1.0, 0.9, 1 / 0.9)}
"""How seeds differ, in a way that no two variants share."""


def spread(cell, loss):
    """A loss near the given one, for the cell's seed."""
    return loss * SPREAD[cell.variant][cell.seed]


def by_recipe(cell):
    """Final losses that the recipe sets; hc at 48 layers is NaN on torch, at chance on mlx."""
    if (cell.variant, cell.depth) == ("hc", 48):
        return NAN if cell.backend == "torch" else CHANCE
    return spread(cell, {"depth-mlx": 0.01, "depth-torch": 1.0}[cell.study])


def row_of(config, cell, loss):
    """A run that ends at a loss. Only hc at 48 layers overflows; only mhc logs its streams."""
    axes = {name: getattr(cell, name) for name in ("study", "depth", "variant", "backend", "seed")}
    values = {
        "recipe": config.studies[cell.study].recipe_name,
        "connection": cell.variant,
        "lr": 0.002,
        "loss_first": CHANCE,
        "loss_final": loss,
        "grad_norm_first": 1.0,
        "grad_norm_final": 0.1,
        "grad_norm_max": 1.5,
        "grad_norm_log10_sd": spread(cell, 0.06),
        "gain_first": 0.0,
        "gain_final": {"baseline": 0.0, "hc": 0.58 * cell.depth, "mhc": -0.6}[cell.variant],
        "seconds_per_step": 0.01,
    }
    if math.isnan(loss):
        values |= {"outcome": "diverged", "nonfinite_total": 3, "first_nonfinite_step": 0}
    elif loss > 0.95 * CHANCE:
        values["outcome"] = "at chance"
    if (cell.variant, cell.depth) == ("hc", 48):
        values |= {"overflow_layer": 30, "overflow_activation_log10": 20.25}
    if cell.variant == "mhc":
        values |= {"stream_difference_max": 0.00015, "grad_norm_H_res_max": 6.9e-6}
    return run(**axes, **values)


def write_world(config, published, templates, loss_of):
    """Tables of runs with these final losses, and the reports that follow; their folder."""
    cells, steps = [], []
    for cell in config.cells():
        loss = loss_of(cell)
        if loss is None:
            cells.append({**row_of(config, cell, 1.0), "status": "missing", "origin": ""})
            continue
        row = row_of(config, cell, loss)
        cells.append(row)
        axes = (cell.variant, cell.depth, cell.seed, cell.study, cell.backend)
        steps += curve([CHANCE, CHANCE, loss], *axes)
    return write_all(config, published, templates, cells, steps)


def write_all(config, published, templates, cells, steps):
    """All tables of these rows, and the reports that follow; their folder."""
    folder = Path(config.report_folder)
    cells = frame(cells)
    summary = summary_table(cells)
    platform = {"platform": CPU_PLATFORM, "framework_version": "2.0.0", "device": "Test CPU",
                "kind": "cpu", "driver": "", "blas": "", "os": "TestOS", "python": "3.11.0",
                "numpy": "2.0.0", "threads": 1, "origin": "here", "made_by": "",
                "runs": 3}  # fmt: skip
    platforms = [{"backend": backend, **platform} for backend in summary.get("backend", [])]
    no_steps = frame(curve([1.0])).iloc[:0]
    save_tables(
        {
            "cells.csv": cells,
            "steps.csv.gz": frame(steps) if steps else no_steps,
            "summary.csv": summary,
            "comparison.csv": comparison_table(cells, summary),
            "platforms.csv": pd.DataFrame(platforms[:1], columns=["backend", *platform]),
        },
        folder / "tables",
    )
    write_attribution(config, folder / "tables")
    write_effects(config, folder / "tables")
    write_claims(config, published, folder / "tables")
    write_reports(config, published, templates, folder)
    return folder


@pytest.fixture(scope="module")
def shipped(pytestconfig, default_config):
    """(published figures, templates) of the repository."""
    report = pytestconfig.rootpath / "report"
    published = groundless(load_published(report / "published.yaml", default_config))
    return published, report / "templates"


@pytest.fixture(scope="module")
def world(shipped, tmp_path_factory):
    """The reports of runs in which the recipe decides: their folder."""
    return write_world(study_config(tmp_path_factory.mktemp("world")), *shipped, by_recipe)


@pytest.fixture(scope="module")
def summit(shipped, tmp_path_factory):
    """As `shipped`, but with no more of the templates than what they say in short.

    Nor has it values or claims, which take longer than all the rest.
    """
    published, templates = shipped
    nothing = {"values": [], "claims": []}
    copy = tmp_path_factory.mktemp("summit") / "templates"
    shutil.copytree(templates, copy, ignore=shutil.ignore_patterns("COMPARISON*"))
    for name, rest in (
        ("RESULTS.md.j2", "## Scorecard\n"),
        ("studies/STUDY.md.j2", "{% for row in verdicts.on"),
    ):
        text, found, _ = (copy / name).read_text(encoding="utf-8").partition(rest)
        assert found
        (copy / name).write_text(text, encoding="utf-8")
    return published.model_copy(update=nothing), copy


def small_config(results, **changes):
    """The deepest cells of hc and mhc: enough for every sentence."""
    return study_config(results, **{"depths": [48], "variants": ["hc", "mhc"], **changes})


@pytest.fixture(scope="module")
def sentences(summit, tmp_path_factory):
    """A function that gives what a world of runs says in short: the answer, then every study."""
    known = {}  # several tests look at the same world

    def write(loss_of, **changes):
        key = loss_of, repr(changes)
        if key not in known:
            config = small_config(tmp_path_factory.mktemp("hurry"), **changes)
            folder = write_world(config, *summit, loss_of)
            known[key] = [
                *answer(folder),
                *(s for name in config.studies for s in short(folder, name)),
            ]
        return known[key]

    return write


@pytest.fixture
def reports(shipped, tmp_path):
    """A function that gives the folder of the reports of a world of runs."""

    def write(loss_of, **changes):
        return write_world(small_config(tmp_path, **changes), *shipped, loss_of)

    return write


def section(text, heading):
    """What stands below a heading, up to the next of the same or a higher level."""
    level = heading.partition(" ")[0]
    _, found, below = f"\n{text}".partition(f"\n{heading}\n")
    assert found, heading
    return re.split(rf"^#{{1,{len(level)}}} ", below, maxsplit=1, flags=re.MULTILINE)[0]


def read(folder, name="RESULTS.md"):
    return (folder / name).read_text(encoding="utf-8")


def page(folder, study):
    """The page of a study."""
    return read(folder, f"studies/{study}.md")


def is_sentence(text):
    """None may be blank, or begin or end as a torn one would."""
    return re.fullmatch(r"[A-Z].*[.?]", text)


def answer(folder):
    """The numbered sentences of the answer."""
    lines = section(read(folder), "## The answer").strip().partition("\n\n")[0].splitlines()
    found = []
    for position, line in enumerate(lines, start=1):
        prefix, _, sentence = line.partition(". ")
        assert prefix == str(position)
        assert is_sentence(sentence), sentence
        found.append(sentence)
    return found


def short(folder, study):
    """What a study's page says in short, if it says anything."""
    text = page(folder, study)
    if "\n## In short\n" not in text:
        return []
    found = re.findall(r"^- (.*)$", section(text, "## In short"), re.MULTILINE)
    assert all(map(is_sentence, found)), found
    return found


def tables_in(text):
    """Every Markdown table, as a list of rows of cells."""
    found = [[]]
    for line in text.splitlines():
        if line.startswith("|"):
            found[-1].append([cell.strip() for cell in line.strip("|").split("|")])
        elif found[-1]:
            found.append([])
    return [table for table in found if table]


@pytest.mark.parametrize("name", ["RESULTS.md", "COMPARISON.md", "studies/depth-mlx.md"])
def test_every_row_of_a_table_has_the_columns_of_its_head(world, name):
    tables = tables_in((world / name).read_text(encoding="utf-8"))
    assert len(tables) > 2
    for head, ruler, *rows in tables:
        assert all(set(cell) <= set("-:") for cell in ruler)
        assert rows
        assert {len(row) for row in (ruler, *rows)} == {len(head)}


@pytest.mark.parametrize("name", ["RESULTS.md", "COMPARISON.md", "studies/depth-mlx.md"])
def test_nothing_of_python_shows_through(world, name):
    text = (world / name).read_text(encoding="utf-8").replace("hc-nan-48", "")
    assert not re.findall(r"\b(nan|None|True|False|Undefined|dtype)\b|[{}]", text)


def test_every_cell_links_to_its_row(world):
    lines = (world / "tables" / "summary.csv").read_text(encoding="utf-8").splitlines()
    (head,) = csv.reader(lines[:1])
    checked = 0
    for study in ("depth-mlx", "depth-torch"):
        _, _, evidence = page(world, study).partition("\n## Gain\n")
        for (_, _, *variants), _, *rows in tables_in(evidence):
            for depth, place, *cells in rows:
                for variant, cell in zip(variants, cells, strict=True):
                    if cell == "none":
                        continue
                    number_ = int(re.search(r"\]\(\.\./tables/summary\.csv#L(\d+)\)$", cell)[1])
                    (row,) = csv.reader(lines[number_ - 1 : number_])
                    found = dict(zip(head, row, strict=True))
                    assert found["study"] == study
                    assert found["depth"] == depth
                    assert found["variant"] == variant
                    assert found["backend"] == place
                    checked += 1
    # Six measures of every variant, and streams and overflow of those that have them. The gain at
    # the first step is zero in every run here: it has no table.
    assert checked > 2 * 6 * len(DEPTHS) * 3 * 2


def test_every_test_of_a_claim_links_to_its_row(world):
    lines = (world / "tables" / "claims.csv").read_text(encoding="utf-8").splitlines()
    text = page(world, "depth-mlx") + page(world, "depth-torch")
    links, claims = 0, set()
    for block in text.split('<a id="')[1:]:
        claim = block.partition('"')[0]
        claims.add(claim)
        for verdict, line in re.findall(
            r"^- \[(.*)\]\(\.\./tables/claims\.csv#L(\d+)\)", block, re.M
        ):
            (row,) = csv.reader(lines[int(line) - 1 : int(line)])
            assert row[0] == claim
            assert verdict in row
            links += 1
    # The others are of studies that this config does not have.
    assert len(claims) == 22
    assert links == sum(next(csv.reader([line]))[0] in claims for line in lines)


def cell_of(text, heading, depth, place, variant):
    """The text of one cell of the first table below a heading of a study's page."""
    below = section(text, f"## {heading}")
    (_, _, *variants), _, *rows = tables_in(below)[0]
    found = {tuple(row[:2]): row[2:] for row in rows}
    cell = found[str(depth), place][variants.index(variant)]
    return re.fullmatch(r"\[(.*)\]\(.*\)", cell)[1]


@pytest.mark.parametrize("study", ["depth-mlx", "depth-torch"])
@pytest.mark.parametrize("depth", DEPTHS)
def test_a_cell_shows_mean_and_interval_of_its_seeds(world, study, depth):
    shown = cell_of(page(world, study), "Final loss", depth, "mlx", "mhc")
    # The logarithms of 0.9, 1 and 1/0.9 are ∓0.105 and 0: the factor is exp(4.303 · 0.105 / √3).
    expected = {"depth-mlx": "0.010 (0.0077 to 0.013)", "depth-torch": "1.0 (0.77 to 1.3)"}
    assert shown == expected[study]


def test_what_counts_is_said_with_its_numbers(world):
    """Those of docs/definitions.md: 3 seeds, 95 %, a thousandth; and milliseconds of 0.01 s."""
    results, compared, study = (
        " ".join(read(world, name).split())
        for name in ("RESULTS.md", "COMPARISON.md", "studies/depth-mlx.md")
    )
    assert "its 95 % interval (Student's t; none below 3 seeds)" in results
    assert "or is above 95 % of the chance level" in study
    assert "they differ by more than 0.001 of themselves at any seed" in compared
    below = section((world / "COMPARISON.md").read_text(), "### depth-mlx: torch beside mlx")
    head, _, *rows = tables_in(below)[1]
    assert head[-2:] == ["ms per step, torch", "ms per step, mlx"]
    assert {cell for row in rows for cell in row[-2:]} == {"10 ± 0"}


def test_a_cell_that_diverged_says_so(world):
    text = page(world, "depth-mlx")
    assert cell_of(text, "Final loss", 48, "torch", "hc") == "NaN (3 of 3)"
    failures = section(text, "## Final loss")
    assert "- 48 layers, hc on torch: 3 diverged and 0 at chance, of 3\n" in failures
    assert "- 48 layers, hc on mlx: 0 diverged and 3 at chance, of 3\n" in failures


def test_variants_without_streams_have_none_to_show(world):
    below = section(page(world, "depth-mlx"), "## Streams and activations")
    (head, _, *rows) = tables_in(below)[0]
    column = head.index("baseline")
    assert {row[column] for row in rows} == {"none"}


def images_of(text):
    return re.findall(r"!\[.*?\]\((.*?)\)", text)


def test_every_figure_of_the_workflow_is_shown(world):
    names = ("loss_comparison", "grad_norm_comparison", "gain_comparison", "depth_scaling",
             "deepest_comparison")  # fmt: skip
    for study in ("depth-mlx", "depth-torch"):
        text = page(world, study)
        first, second = (
            [f"../figures/{study}/{backend}/{name}.png" for name in names]
            for backend in ("torch", "mlx")
        )
        assert images_of(text) == first
        assert [file for file in second if f"]({file})" in text] == second
    assert images_of(read(world)) == ["figures/overview/loss_against_depth.png"]
    compared = [f"figures/overview/{name}.png" for name in ("variance", "published")]
    assert images_of(read(world, "COMPARISON.md")) == compared


def test_claims_link_to_their_tests(world):
    rows = tables_in(section(read(world), "## Scorecard"))[0][2:]
    links = [re.match(r"\[(.*?)\]\((.*?)#(.*)\)", row[0]).groups() for row in rows]
    assert len(links) == 41
    for claim, file, anchor in links:
        if file == "RESULTS.md":
            assert anchor == "what-could-not-be-judged"
        else:
            assert anchor == claim
            assert f'<a id="{claim}"></a>' in read(world, file)
    # Those of the two studies that there are.
    assert sum(file != "RESULTS.md" for _, file, _ in links) == 22


def test_the_scorecard_counts_every_claim(world):
    text = section(read(world), "## Scorecard").strip().partition("\n")[0]
    assert text.startswith("Of 41 claims of the sources, ")
    counts = {v: int(n) for n, v in re.findall(r"(\d+) (?:is|are) ([a-z ]+)", text)}
    verdicts = pd.read_csv(world / "tables" / "verdicts.csv")["verdict"].value_counts()
    assert set(counts) == {"reproduced", "not reproduced", "contradicted", "not measured"}
    assert {v: n for v, n in counts.items() if n} == verdicts.to_dict()


def test_the_scorecard_shows_the_test_that_decides(world):
    rows = {row[0].partition("]")[0][1:]: row for row in tables_in(read(world))[0][2:]}
    lines = read(world, "tables/claims.csv").splitlines()
    # Of hc-fails-48 the source is an MLX program, and there hc ends at chance.
    reason, line = re.fullmatch(
        r"\[(.*)\]\(tables/claims.csv#L(\d+)\)", rows["hc-fails-48"][4]
    ).groups()
    assert reason == "of 3 runs: 3 at chance"
    (found,) = csv.reader([lines[int(line) - 1]])
    assert found[0] == "hc-fails-48"
    assert rows["demo-converges-fast"][3:] == ["**not measured**: no run of demo-50", "", ""]


def test_what_could_not_be_judged_says_why(world):
    below = section(read(world), "## What could not be judged")
    assert "No run of mhc at 24 layers." not in below.partition("- ")[0]
    assert "- Compiling is not what makes the bits per byte better. No setting" in below
    assert "; on a CPU nothing is compiled.\n" in below


def test_the_number_of_tests_is_said(world):
    card = section(read(world), "## Scorecard")
    rows = pd.read_csv(world / "tables" / "claims.csv")
    tests = int((rows["verdict"] != "not measured").sum())
    counting = ("fails", "diverges_at_once", "no_events", "monotone", "constant")
    made = rows[rows["verdict"] != "not measured"]
    one_by_one = made["test"].isin(["near", "between"]) & (made["verdict"] != "contradicted")
    resting = int((~made["test"].isin(counting) & ~one_by_one).sum())
    assert 0 < resting < tests
    text = " ".join(card.split())
    assert f"{tests} tests were made. {resting} of them rest on an interval" in text
    assert "at 95 % confidence" in text
    assert f"about {0.05 * resting:.2g} of these" in text


def test_each_test_says_its_rule_and_its_confidence(world):
    text = page(world, "depth-mlx")
    block = text.partition('<a id="hc-fails-48"></a>')[2].partition("<a id=")[0]
    assert ", by the rule `fails`, count of runs: of 3 runs: 3 at chance" in block
    block = text.partition('<a id="gain-mhc-bounded"></a>')[2].partition("<a id=")[0]
    assert ", by the rule `near`, count of runs: 9 of 9 runs" in block


def test_why_a_claim_was_not_measured_stands_in_its_line(shipped, tmp_path, default_config):
    published, templates = shipped
    (claim,) = (claim for claim in published.claims if claim.id == "hc-fails-48")
    deep = claim.model_copy(update={"ground": {"width": 32}})
    one = published.model_copy(update={"claims": [deep], "values": []})
    folder = write_world(small_config(tmp_path), one, templates, by_recipe)
    (row,) = tables_in(section(read(folder), "## Scorecard"))[0][2:]
    assert row[3] == "**not measured**: width 16 cannot speak for 256"


def test_another_scale_is_said_with_the_claim(world):
    block = page(world, "depth-mlx").partition('<a id="hc-fails-48"></a>')[2].partition("<a id=")[0]
    assert "at another scale" in block
    scale = "vocab 64 for 256, length 8 for 128, width 16 for 256"
    assert f"Scale: {scale}" in block
    card = section(read(world), "## Scorecard")
    (row,) = [row for row in tables_in(card)[0] if row[0].startswith("[hc-fails-48]")]
    assert re.search(rf"^.*\b{row[-1]}: {scale}", card, re.MULTILINE)


# --- published beside ours -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "shown", "scale"),
    [
        ({}, "0.210 ± 0.026", "**Ours is at another scale**: vocab 64 for 256, "),
        (None, "**0.210 ± 0.026**", "Ours is at the published scale."),
    ],
)
def test_deviating_values_stand_out_at_the_published_scale(shipped, tmp_path, model, shown, scale):
    # Published for the MLX runs at 12 layers: baseline 1.78, hc 0.0001, mhc 0.002.
    losses = {"baseline": [1.7, 1.8, 1.9], "hc": [0.2, 0.21, 0.22], "mhc": [0.002, 0.002, 0.002]}
    published, templates = shipped
    if model is None:  # our scale is taken for the published one
        values = [figures.model_copy(update={"scale": {}}) for figures in published.values]
        published = published.model_copy(update={"values": values})
    config = study_config(tmp_path, depths=[12], backends=["mlx"])
    folder = write_world(config, published, templates, lambda cell: losses[cell.variant][cell.seed])
    beside = section(read(folder, "COMPARISON.md"), "## depth-mlx: mHC demo, MLX results")
    rows = {tuple(row[:3]): row[3:] for row in tables_in(beside)[0][2:]}
    assert rows["`loss_final`", "12", "baseline"] == ["1.78", "1.80 ± 0.27"]
    assert rows["`loss_final`", "12", "hc"] == ["0.0001", shown]
    assert rows["`loss_final`", "12", "mhc"] == ["0.002", "0.002 ± 0"]
    assert rows["`loss_final`", "24", "mhc"] == ["0.0002", "not run here"]
    assert scale in beside


def test_contradictions_inside_the_sources_are_named(world, shipped):
    text = (world / "COMPARISON.md").read_text(encoding="utf-8")
    below = section(text, "# Notes on the sources")
    assert len(shipped[0].notes) >= 2
    for note in shipped[0].notes:
        assert note.says in below


def test_trajectories_stand_in_the_comparison(shipped, tmp_path):
    # mlx ends 5 % above torch, 1/21 relative to mlx; the seeds spread by 0.105 of the mean.
    def loss(cell):
        return spread(cell, 1.05 if cell.backend == "mlx" else 1.0)

    config = study_config(tmp_path, depths=[12], variants=["mhc"])
    folder = write_world(config, *shipped, loss)
    text = (folder / "COMPARISON.md").read_text(encoding="utf-8")
    below = section(text, "### depth-mlx: torch beside mlx")
    parted = tables_in(below)[-1]
    assert parted[2] == ["12", "mhc", "2", "0.048", "0.048", "0.11", "yes"]
    (_, _, row) = tables_in(text)[0][:3]
    assert row[1:] == [
        "torch, mlx",
        "0",
        "1 of 1",
        "2",
        "1 of 1",
        "the same, within the spread over seeds",
    ]


def test_a_study_whose_backends_differ_is_named_with_its_cells(world):
    head, _, *rows = tables_in(read(world, "COMPARISON.md"))[0]
    assert head[-1] == "verdict"
    # hc at 48 layers is NaN on torch, and at chance on mlx.
    assert [row[-1] for row in rows] == ["differs: hc at 48 layers"] * 2


# --- the answer ------------------------------------------------------------------------------


def test_the_answer_is_a_few_sentences(world):
    assert len(answer(world)) == 3


def beside_plain(study, depth, seeds):
    """Runs of the plain network at 1.0, 1.1, 1.2, …, and of mhc beside it."""
    plain = [run(study=study, depth=depth, variant="baseline", seed=i, loss_final=1 + i / 10)
             for i in range(len(seeds))]  # fmt: skip
    return plain + [
        run(study=study, depth=depth, variant="mhc", seed=i, loss_final=1 + i / 10 + more)
        for i, more in enumerate(seeds)
    ]


LOWER, HIGHER, ALIKE, UNTOLD = (
    (-0.2, -0.2, -0.21), (0.2, 0.2, 0.21), (0.0, 0.0, 0.0), (-0.1, 0.1, 0.0),
)  # fmt: skip


@pytest.mark.parametrize(
    ("differences", "begins", "first", "second"),
    [
        ((LOWER, HIGHER), "It depends on", "a lower loss", "a higher loss"),
        ((LOWER, UNTOLD), "Nothing here speaks against it", "a lower loss", "not distinguishable"),
        ((HIGHER, ALIKE), "Nothing here speaks for it", "a higher loss", "the same loss"),
    ],
)
def test_whether_to_use_mhc_is_told_from_the_effects(
    summit, tmp_path, differences, begins, first, second
):
    config = study_config(tmp_path, depths=[12, 24], variants=["baseline", "mhc"])
    rows = [
        row
        for depth, seeds in zip((12, 24), differences, strict=True)
        for row in beside_plain("depth-mlx", depth, seeds)
    ]
    (told, *_) = answer(write_all(config, *summit, rows, []))
    assert told.startswith(f"Should I use mHC? {begins}")
    assert "In 2 comparisons with the plain residual network" in told
    assert re.search(rf"{first}[^(]* in 1 \(.*{second}[^(]* in 1 \(", told)


def deciding(found):
    """The sentence that says what decides."""
    (sentence,) = [s for s in found if "decides" in s]
    return sentence


def test_the_recipe_decides_where_it_does(sentences):
    decides = deciding(sentences(by_recipe))
    assert decides.startswith("The recipe decides, not the platform: it explains 100 % of")
    assert "the backend <0.5 %" in decides


def test_the_platform_decides_where_it_does(sentences):
    def by_backend(cell):
        return spread(cell, {"torch": 0.01, "mlx": 1.0}[cell.backend])

    decides = deciding(sentences(by_backend))
    assert decides.startswith("The platform decides, not the recipe: it explains 100 % of")


def test_neither_decides_where_the_seed_does(sentences):
    decides = deciding(sentences(lambda cell: 10.0 ** (cell.seed - 2)))
    assert decides.startswith("Neither recipe nor platform decides: seed explains 100 % of")


def test_neither_decides_where_only_both_together_do(sentences):
    def by_both(cell):
        return spread(cell, 1.0 if (cell.study == "depth-mlx") == (cell.backend == "mlx") else 0.01)

    decides = deciding(sentences(by_both))
    assert decides.startswith("Neither recipe nor platform decides: ")
    assert "explains 100 % of" in decides


def test_nothing_decides_where_all_have_a_part(sentences):
    # log10 of the loss: ±1 by recipe and ±1 by backend, so half of the variance each.
    def by_each(cell):
        recipe = 10.0 if cell.study == "depth-mlx" else 0.1
        return spread(cell, recipe * (0.1 if cell.backend == "mlx" else 0.001))

    decides = deciding(sentences(by_each))
    assert decides.startswith("No single factor decides: ")
    assert "the recipe explains 50 %, the backend 50 %, the seed <0.5 %" in decides


@pytest.mark.parametrize(
    ("diverged", "told"),
    [
        ((), "in the median of 3 cells, and"),
        ((12,), "in the median of 2 of 3 cells (the other has runs that diverged), and"),
        ((12, 24), "in the median of 1 of 3 cells (the others have runs that diverged), and"),
    ],
)
def test_cells_that_are_left_out_because_a_run_diverged_are_told(summit, tmp_path, diverged, told):
    def loss_of(cell):
        fails = cell.depth in diverged and (cell.backend, cell.seed) == ("mlx", 0)
        return NAN if fails else spread(cell, {"depth-mlx": 0.01, "depth-torch": 1.0}[cell.study])

    config = small_config(tmp_path, depths=DEPTHS, variants=["mhc"])
    decides = deciding(answer(write_world(config, *summit, loss_of)))
    assert decides.startswith("The recipe decides, not the platform: it explains 100 % of")
    assert told in decides


def test_the_comparison_gives_the_same_answer(world):
    assert deciding(answer(world)) in read(world, "COMPARISON.md")


def test_the_failure_of_hc_is_told_by_backend(sentences):
    (overflow, _) = (s for s in sentences(by_recipe) if s.startswith("In depth-mlx, hc "))
    assert overflow.startswith("In depth-mlx, hc does not learn in 6 of 6 runs at 48 layers")
    assert "layer norm of block 30" in overflow
    assert "10^20.2" in overflow
    assert "torch: 3 not finite and 0 at chance" in overflow
    assert "mlx: 0 not finite and 3 at chance" in overflow


def test_an_hc_that_learns_is_not_told_to_fail(sentences):
    found = sentences(lambda cell: spread(cell, 0.01))
    told = [s for s in found if "hc does not learn in 0 of 6 runs at 48 layers" in s]
    assert len(told) == 3  # the answer, and each study


def test_what_mhc_ends_at_is_told_by_depth(sentences):
    losses = {12: 0.5, 24: 0.25, 48: 0.125}
    found = sentences(lambda cell: spread(cell, losses[cell.depth]), depths=DEPTHS)
    (depth,) = [s for s in found if s.startswith("With recipe mlx-defaults")]
    assert "mhc ends at a loss of 0.5 at 12, 0.25 at 24, 0.125 at 48 layers" in depth
    assert "do not learn" not in depth


RECIPE = {"embedding": "unit", "attention": "linear", "bias_correction": True}


def test_a_recipe_that_is_written_as_its_settings_is_named_by_them(sentences):
    changes = {"depth-mlx": {"recipe": RECIPE}}
    found = sentences(lambda cell: spread(cell, 0.5), **changes)
    (depth,) = [sentence for sentence in found if sentence.startswith("With recipe embedding")]
    assert depth.startswith(
        "With recipe embedding unit, attention linear, bias_correction True, linear uniform, "
        "outputs linear, head linear (depth-mlx), mhc ends"
    )


def test_studies_of_one_recipe_are_told_together(sentences):
    found = sentences(lambda cell: spread(cell, 0.5), **{"depth-torch": {"recipe": "mlx-defaults"}})
    (depth,) = [sentence for sentence in found if "; in depth-torch of" in sentence]
    assert "(depth-mlx), mhc ends at a loss of 0.5 at 48 layers; in depth-torch of 0.5" in depth


def test_an_mhc_that_fails_is_told_so(sentences):
    def fails_on_torch(cell):
        return NAN if cell.backend == "torch" else spread(cell, 0.01)

    found = sentences(fails_on_torch)
    (depth,) = [s for s in found if s.startswith("With recipe mlx-defaults")]
    assert "a loss of NaN / 0.01 at 48 layers, where 3 of 6 runs at 48 layers do not learn" in depth


def test_streams_are_told_with_their_numbers(sentences):
    (streams, _) = (s for s in sentences(by_recipe) if "streams of mhc differ" in s)
    assert "the streams of mhc differ by at most 0.00015 of" in streams
    assert "H_res is at most 6.9e−06 in any run, beside 1.5 for all" in streams


# --- what cannot be said is left out ---------------------------------------------------------


def test_one_backend_leaves_the_question_open(sentences):
    found = sentences(by_recipe, backends=["mlx"])
    assert found
    assert not any("decides" in sentence for sentence in found)


def test_one_study_leaves_the_question_open(sentences):
    found = sentences(lambda cell: spread(cell, 0.01) if cell.study == "depth-mlx" else None)
    assert not any("decides" in sentence for sentence in found)
    assert any(sentence.startswith("In depth-mlx, hc ") for sentence in found)


def test_a_study_that_was_not_run_is_not_told(sentences):
    found = sentences(lambda cell: spread(cell, 0.5) if cell.study == "depth-torch" else None)
    assert any(
        "With recipe torch-defaults (depth-torch), mhc ends at" in sentence for sentence in found
    )
    assert not any("depth-mlx" in sentence for sentence in found)


@pytest.mark.parametrize("variants", [["baseline"], ["baseline", "hc"]])
def test_without_mhc_nothing_is_said_of_it(sentences, variants):
    found = sentences(by_recipe, variants=variants)
    assert not any("mhc" in sentence for sentence in found)
    assert not any("depth stops counting" in sentence for sentence in found)


def test_mhc_in_the_second_study_alone_is_told_all_the_same(sentences):
    changes = {"depth-mlx": {"variants": ["hc"]}, "depth-torch": {"recipe": "mlx-defaults"}}
    found = sentences(lambda cell: spread(cell, 0.5), **changes)
    assert any(
        sentence.startswith(
            "With recipe mlx-defaults (depth-torch), mhc ends at a loss of 0.5 at 48 layers"
        )
        for sentence in found
    )


def test_one_seed_makes_a_report_too(sentences):
    found = sentences(by_recipe, seeds=[0])
    assert any("hc does not learn in 2 of 2 runs" in sentence for sentence in found)


def test_without_any_run_a_report_says_so(reports):
    folder = reports(lambda cell: None)
    text = read(folder)
    assert section(text, "## The answer").strip().startswith("Nothing was measured here.")
    assert "41 are not measured" in text
    assert "- depth-mlx: not run here." in text
    assert "- depth-mlx on torch: 6 cells missing" in text
    assert "\nNot run here.\n" in page(folder, "depth-mlx")


def test_a_backend_that_was_not_run_is_named(reports):
    folder = reports(lambda cell: spread(cell, 0.1) if cell.backend == "torch" else None)
    for name in ("COMPARISON.md", "studies/depth-mlx.md"):
        assert "Backend mlx: not run here." in read(folder, name)


def test_a_cell_that_was_not_run_says_so(reports):
    left = ("hc", "mlx")
    folder = reports(
        lambda cell: None if (cell.variant, cell.backend) == left else spread(cell, 0.1)
    )
    (_, _, *variants), _, *rows = tables_in(section(page(folder, "depth-mlx"), "## Final loss"))[0]
    shown = {row[1]: row[2 + variants.index("hc")] for row in rows}
    assert shown["mlx"] == "not run here"
    assert shown["torch"] != "not run here"


# --- a task's own part -----------------------------------------------------------------------


def test_a_study_of_images_has_a_part_of_its_own(shipped, tmp_path):
    images = {"task": "fashion", "variants": ["resnet", "mhc_causal"], "streams": 1, "depths": [4],
              "seeds": [0], "model": {"width": 16}}  # fmt: skip
    config = config_with(tmp_path, ("images",), images=images)
    rows = [
        run(study="images", depth=4, variant=variant, backend=backend, test_accuracy=accuracy,
            loss_final=0.9, mixing_row_error=error, outcome=outcome, chance_loss=math.log(10))
        for backend in ("torch", "mlx")
        for variant, accuracy, error, outcome in (
            ("resnet", 0.625, NAN, "diverged"), ("mhc_causal", 0.75, 0.0125, "learned"),
        )
    ]  # fmt: skip
    study = page(write_all(config, *shipped, rows, []), "images")
    assert "W 16, dropout 0.1, S 1, B 8" in study
    assert cell_of(study, "Test accuracy", 4, "torch", "mhc_causal") == "0.75"
    assert "in nats per image. At chance it is 2.303:" in study
    assert "At chance it is 0.1:" in study
    assert "the gradient norm of the first weight passed 1e+06" in study
    mixing = tables_in(section(study, "## Mixing matrices"))[0]
    assert mixing[0][2:] == ["resnet", "mhc_causal"]
    assert mixing[2][2] == "none"
    assert mixing[2][3].startswith("[0.0125]")
    assert images_of(study) == [
        f"../figures/images/torch/{name}.png" for name in ("comparison", "mixing_matrix")
    ]
    compared = (tmp_path / "COMPARISON.md").read_text(encoding="utf-8")
    (head, *_) = tables_in(section(compared, "### images: torch beside mlx"))[1]
    assert head[4:6] == ["test_accuracy, torch", "test_accuracy, mlx"]


LEVELS = {"unigram_bpc": 4.8, "bigram_bpc": 3.6, "trigram_bpc": 2.9}


def arm(variant, bits, *, study="text-arms", similarity=0.1, gate=0.5, seed=0, depth=2, **values):
    """A run of an arm, with what a source has thresholds for."""
    return run(
        study=study, variant=variant, depth=depth, seed=seed, validation_bpc=bits,
        validation_bpb=bits, stream_embedding_similarity_final=similarity,
        stream_similarity_final=0.7, gate_first_final=gate, gate_mean_final=0.25,
        base_row_error_final=0.125, base_column_error_final=1e-7, base_diagonal_final=0.5,
        chance_loss=math.log(84), seconds=2.0, **LEVELS, **values,
    )  # fmt: skip


TEXT = {"task": "text", "recipe": "nanochat", "depths": [2], "seeds": [0, 1, 2],
        "backends": ["torch"], "model": {"length": 16, "width": 16, "heads": 4, "hidden": 32,
        "wrap": "sublayer"}}  # fmt: skip
ARMS = {name: {"connection": "mhc_gated_dynamic"} for name in ("v1", "v4c", "v5")}


@pytest.fixture
def text_world(shipped, tmp_path):
    """A function that gives the reports' folder of runs of the two studies of arms."""

    def write(*rows):
        variants = [{name: settings} for name, settings in ARMS.items()]
        study = {**TEXT, "variants": variants}
        names = ("text-arms", "text-arms-adamw")
        adamw = {**study, "recipe": "unit-variance"}
        config = config_with(tmp_path, names, **{names[0]: study, names[1]: adamw})
        cells = [row for group in rows for row in (group if isinstance(group, list) else [group])]
        return write_all(config, *shipped, cells, [])

    return write


def three(variant, *bits, **values):
    return [arm(variant, b, seed=seed, **values) for seed, b in enumerate(bits)]


def test_what_was_learned_is_told_beside_the_trigram_line(text_world):
    folder = text_world(three("v1", 3.0, 3.1, 3.2), three("v5", 3.5, 3.6, 3.7))
    (told,) = [s for s in short(folder, "text-arms") if s.startswith("In text-arms, ")]
    assert "after 3 steps, the best of 2 variants ends at [3.10 ± 0.26](" in told
    assert "bits per character at 2 layers (v1, not below the trigram line). A trigram" in told
    assert "has 2.9: no network here has learned as much" in told
    (_, _, row) = tables_in(section(page(folder, "text-arms"), "## Validation"))[1]
    assert row[2:] == ["v1", row[3], "4.8", "3.6", "2.9", "no"]
    assert row[3].startswith("[3.10 ± 0.26](../tables/summary.csv#L2")
    (overall,) = [s for s in answer(folder) if s.startswith("On text, ")]
    assert overall.startswith("On text, no network learns as much as a model that counts")
    assert "(v1 in text-arms), counting 2.9." in overall


def test_a_network_below_the_trigram_line_is_told_so(text_world):
    folder = text_world(three("v5", 2.5, 2.6, 2.7))
    (told,) = [s for s in short(folder, "text-arms") if s.startswith("In text-arms, ")]
    assert "the best of 1 variant ends at" in told
    assert told.endswith("at 2 layers (v5). A trigram model, which only counts, has 2.9.")
    (_, _, row) = tables_in(section(page(folder, "text-arms"), "## Validation"))[1]
    assert row[-1] == "yes"
    assert any("a network learns more than a model that counts" in s for s in answer(folder))


def test_an_interval_that_holds_the_line_has_not_passed_it(text_world):
    folder = text_world(three("v5", 2.6, 2.8, 3.0))  # 2.8 ± 0.5
    assert any("(v5, not below the trigram line)" in s for s in short(folder, "text-arms"))


def test_an_arm_stands_beside_its_source(text_world):
    folder = text_world(
        [arm("v1", 3.0, seed=n, similarity=s) for n, s in enumerate((0.1, 0.15, 0.9))],
        three("v4c", 3.0, 3.0, 3.0, similarity=0.5, gate=1.0),
    )
    below = section(page(folder, "text-arms"), "## Arms")
    limits, (head, _, *rows) = tables_in(below)
    assert limits[2] == ["`stream_embedding_similarity_final`", "below 0.2", "above 0.4"]
    found = {row[0]: dict(zip(head, row, strict=True)) for row in rows}
    assert list(found) == ["v1", "v4c"]
    one, four = found["v1"], found["v4c"]
    # Mean 0.383: neither. One run is bad, two are good.
    assert one["similarity of the stream embedding"].endswith(
        "), between (0 of 3 runs); published: 0.087, 0.37 to 0.52"
    )
    assert four["similarity of the stream embedding"] == (
        "[0.5 ± 0](../tables/summary.csv#L3), bad; published: 0.387"
    )
    assert four["gate of the first layer"].endswith("), bad; published: 0.452")
    assert one["gate of the first layer"].endswith("), good; published: 0.688")
    assert four["row error"].endswith("); published: 0.17")
    assert four["column error"].endswith("), good")
    assert one["bits per byte"].endswith("), bad; published: 1.15")
    assert one["similarity of streams"].endswith(")")


def test_a_study_without_thresholds_has_its_streams_instead(shipped, tmp_path):
    config = config_with(tmp_path, ("prose",), prose={**TEXT, "variants": ["mhc_paper"]})
    rows = [arm("mhc_paper", 3.0, study="prose")]  # which has no gates
    text = page(write_all(config, *shipped, rows, []), "prose")
    assert "## Arms" not in text
    assert cell_of(text, "Streams", 2, "torch", "mhc_paper") == "0.7"
    assert re.findall(r"!\[.*?\]\(\.\./figures/prose/torch/(.*?)\.png\)", text) == [
        "validation", "final_bits", "similarity", "matrices", "trade_off",
    ]  # fmt: skip


def test_what_belongs_to_the_optimiser_is_told(text_world):
    """Under the source's optimiser the gate of v4c moves, and static mHC learns under both."""
    folder = text_world(
        three("v5", 3.0, 3.0, 3.0),
        three("v5", 3.0, 3.0, 3.0, study="text-arms-adamw"),
        [arm("v5", 3.0, seed=3, nonfinite_total=1, study="text-arms-adamw")],
    )
    rows = tables_in(section(page(folder, "text-arms-adamw"), "## Connection or optimiser?"))[0][2:]
    found = {re.match(r"\[(.*?)\]", row[0])[1]: row[2:] for row in rows}
    assert len(found) == 10
    assert found["text-static-stable"] == ["reproduced", "contradicted", "text-arms alone"]
    assert found["text-gate-saturates"] == ["not measured"] * 3
    (told,) = [s for s in short(folder, "text-arms-adamw") if "belongs to the connection" in s]
    assert told.startswith(
        "Of 1 claims about the arms that text-arms and text-arms-adamw both measure, 1 is so in "
        "text-arms alone."
    )
    (row,) = [r for r in tables_in(read(folder))[0] if r[0].startswith("[text-static-stable]")]
    assert row[3] == "**reproduced**, at another scale"
    assert "(control): " in page(folder, "text-arms")


@pytest.mark.parametrize(
    ("ours", "theirs", "shown"),
    [
        ("reproduced", "reproduced", "both"),
        ("reproduced", "not reproduced", "a alone"),
        ("contradicted", "reproduced", "b alone"),
        ("contradicted", "not reproduced", "neither"),
        ("reproduced", "not measured", "not measured"),
        ("not measured", "reproduced", "not measured"),
    ],
)
def test_where_a_controlled_claim_is_so(ours, theirs, shown):
    row = {"claim": "c", "verdict": ours, "studies": "a", "control_study": "b", "control": theirs,
           "qualifier": "at another scale"}  # fmt: skip
    view = VerdictsView(pd.DataFrame([row]), pd.DataFrame(columns=["claim"]))
    assert [found["shown"] for found in view.controlled_by("b")] == [shown]
    assert view.controlled_by("a") == []
    in_part = pd.DataFrame([{**row, "qualifier": "at another scale, in part"}])
    view = VerdictsView(in_part, pd.DataFrame(columns=["claim"]))
    assert [found["shown"] for found in view.controlled_by("b")] == ["not measured"]


# --- places ----------------------------------------------------------------------------------


def test_an_imported_platform_has_rows_of_its_own(shipped, tmp_path):
    config = study_config(tmp_path, depths=[12], variants=["mhc"], backends=["torch"])
    folder = write_world(config, *shipped, lambda cell: 0.5)
    here = pd.read_csv(folder / "tables" / "cells.csv", keep_default_na=False)
    there = here.assign(
        origin="imported", status="imported", platform=GPU_PLATFORM, loss_final=0.75
    )
    cells = pd.concat([here, there]).replace("", None)
    cells["reason"] = ""
    summary = summary_table(cells)
    comparison = comparison_table(cells, summary)
    save_tables(
        {"cells.csv": cells, "summary.csv": summary, "comparison.csv": comparison},
        folder / "tables",
    )
    write_reports(config, *shipped, folder)
    text = page(folder, "depth-mlx")
    label = f"torch, {GPU_PLATFORM}"
    assert cell_of(text, "Final loss", 12, "torch", "mhc").startswith("0.5 ")
    assert cell_of(text, "Final loss", 12, label, "mhc").startswith("0.75 ")
    assert f"figures/depth-mlx/torch-{GPU_PLATFORM}/loss_comparison.png" in text
    compared = (folder / "COMPARISON.md").read_text(encoding="utf-8")
    assert f"### depth-mlx: torch beside {label}" in compared


REPORTS = ("RESULTS.md", "COMPARISON.md", "studies/depth-mlx.md")


def links_that_lead_nowhere(folder, name):
    """Links of a report to files that are not there; figures are not drawn here."""
    links = set(re.findall(r"\]\(([^)#]+)", read(folder, name)))
    assert any(link.endswith("definitions.md") for link in links) or name == "COMPARISON.md"
    return [
        link
        for link in links
        if "figures/" not in link
        and not link.startswith("https://")
        and not (folder / name).parent.joinpath(link).is_file()
    ]


def test_links_lead_somewhere_from_any_results_folder(shipped, tmp_path, monkeypatch, pytestconfig):
    """The paper preset writes into a folder below the default one."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(pytestconfig.rootpath / "docs", tmp_path / "docs")
    config = study_config("results/paper", depths=[12], variants=["mhc"], backends=["mlx"])
    folder = write_world(config, *shipped, lambda cell: 0.5)
    for name in REPORTS:
        assert links_that_lead_nowhere(folder, name) == []


def test_the_report_of_a_cut_says_so_in_its_head(shipped, tmp_path):
    whole = study_config(tmp_path / "results", variants=["mhc"], seeds=[0])
    cut = check_config(
        {**whole.model_dump(mode="json"), "depths": [12], "backends": ["mlx", "torch"]}
    )
    folder = write_world(cut, *shipped, lambda cell: 0.5)
    assert folder == tmp_path / "results/cuts/depths-12+backends-mlx-torch"
    for name in REPORTS:
        head = "\n".join(read(folder, name).splitlines()[:4])
        assert "**This is a cut of the whole grid: only depths 12, backends mlx torch.**" in head
        assert links_that_lead_nowhere(folder, name) == []


def test_the_report_of_the_whole_grid_names_no_cut(world):
    for name in REPORTS:
        assert "cut of" not in (world / name).read_text(encoding="utf-8")


def test_anchors_of_the_definitions_exist(world, pytestconfig):
    text = (pytestconfig.rootpath / "docs/definitions.md").read_text(encoding="utf-8")
    anchors = {
        re.sub(r"[^\w -]", "", heading.strip("# ").lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ .*$", text, re.MULTILINE)
    }
    for name in ("RESULTS.md", "studies/depth-mlx.md"):
        linked = set(re.findall(r"definitions\.md#([a-z-]+)", read(world, name)))
        assert linked
        assert linked <= anchors


# --- templates that cannot be filled ---------------------------------------------------------


@pytest.fixture(scope="module")
def small_world(shipped, tmp_path_factory):
    """The reports of a few runs: their config, and their folder."""
    config = small_config(tmp_path_factory.mktemp("small"), seeds=[0])
    return config, write_world(config, *shipped, by_recipe)


@pytest.fixture
def broken(small_world, shipped, tmp_path):
    """A function that appends text to a copy of a shipped template, and gives the error's text."""
    config, folder = small_world

    def fill(name, text):
        report = tmp_path / "report"
        shutil.copytree(shipped[1].parent, report)
        file = report / "templates" / name
        with file.open("a", encoding="utf-8") as template:
            template.write(f"{text}\n")
        with pytest.raises(ConfigError) as caught:
            write_reports(config, shipped[0], report / "templates", folder)
        (line,) = str(caught.value).splitlines()
        last = len(file.read_text(encoding="utf-8").splitlines())
        return line, f"{name}: line {last}: "

    return fill


def test_a_misspelt_name_is_one_line_that_names_the_template(broken):
    line, _ = broken("RESULTS.md.j2", "{{ verdcts.rows }}")
    assert "RESULTS.md.j2: " in line
    assert "'verdcts' is undefined" in line


def test_a_misspelt_name_is_found_by_its_line(broken):
    line, place = broken("RESULTS.md.j2", "{{ verdcts.rows }}")
    assert place in line


def test_a_misspelt_column_is_one_line_that_names_the_template(broken):
    line, _ = broken(
        "COMPARISON.md.j2",
        "{% for study in studies %}{{ study.summary_of_all }}{% endfor %}",
    )
    assert "COMPARISON.md.j2: " in line
    assert "summary_of_all" in line


def test_bad_syntax_is_one_line_that_names_the_template_and_the_line(broken):
    line, place = broken("RESULTS.md.j2", "{{ verdicts.rows ")
    assert place in line


def test_bad_syntax_of_a_macro_names_the_file_of_macros(broken):
    line, place = broken("sentences.j2", "{% endif %}")
    assert place in line


def test_prose_is_checked_before_anything_is_written(broken, small_world):
    _, folder = small_world
    (folder / "COMPARISON.md").unlink()
    line, place = broken("RESULTS.md.j2", "The loss is 4.")
    assert place in line
    assert not (folder / "COMPARISON.md").exists()


def test_the_same_tables_make_the_same_report(small_world, shipped):
    config, folder = small_world
    found = []
    for _ in range(2):
        write_reports(config, *shipped, folder)
        found.append([(folder / name).read_bytes() for name in ("RESULTS.md", "COMPARISON.md")])
    assert found[0] == found[1]


# --- beside a kept result ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def beside(world, shipped, tmp_path_factory):
    """The reports of `world` beside a kept result that judges two claims otherwise."""
    kept = tmp_path_factory.mktemp("kept")
    (kept / "tables").mkdir()
    (kept / "studies").mkdir()
    (kept / "studies" / "depth-mlx.md").write_text("", encoding="utf-8")
    verdicts = pd.read_csv(world / "tables" / "verdicts.csv").set_index("claim")
    verdicts["verdict"] = "not measured"
    judged = ["verdict", "qualifier", "studies"]
    verdicts.loc["hc-fails-48", judged] = ["contradicted", "one seed", "depth-mlx"]
    verdicts.loc["text-compile", judged] = ["reproduced", "", "text-arms"]
    verdicts.to_csv(kept / "tables" / "verdicts.csv")
    shutil.copy(world / "tables" / "claims.csv", kept / "tables" / "claims.csv")
    config = study_config(world).model_copy(update={"reference": str(kept)})
    folder = tmp_path_factory.mktemp("beside")
    shutil.copytree(world / "tables", folder / "tables")
    write_reports(config, *shipped, folder)
    return folder, Path(os.path.relpath(kept, config.report_folder)).as_posix()


def test_a_kept_results_verdict_comes_first_and_leads_to_its_tests(beside):
    folder, link = beside
    (header, _, *rows), *_ = tables_in(section(read(folder), "## Scorecard"))
    assert header[3:5] == ["at the reference scale", "here"]
    found = {row[0].partition("]")[0][1:]: row[3] for row in rows}
    there = f"[contradicted, one seed]({link}/studies/depth-mlx.md#hc-fails-48)"
    assert found["hc-fails-48"] == there
    assert found["text-compile"] == f"[reproduced]({link}/RESULTS.md)"  # it has no such page
    assert {v for claim, v in found.items() if claim not in ("hc-fails-48", "text-compile")} == {
        "not measured"
    }


def test_what_cannot_be_judged_here_is_told_from_the_kept_result(beside):
    folder, link = beside
    (line,) = (
        line
        for line in section(read(folder), "## What could not be judged").splitlines()
        if line.startswith("- Compiling is not")
    )
    assert line.endswith(f". At the reference scale: [reproduced]({link}/RESULTS.md).")


def test_a_studys_page_leads_to_the_same_study_at_the_reference_scale(beside):
    folder, link = beside
    page = read(folder, "studies/depth-mlx.md")
    assert f"[the reference scale](../{link}/studies/depth-mlx.md)" in page
    assert f"At the reference scale: [contradicted, one seed](../{link}/studies/" in page
    assert "reference scale" not in read(folder, "studies/depth-torch.md").partition("##")[0]


def test_without_a_kept_result_nothing_is_said_of_one(world):
    assert "eference scale" not in read(world)


# --- contrasts in numbers ------------------------------------------------------------------------


def test_many_comparisons_are_told_by_their_number_and_their_ends(shipped):
    environment = environment_of(shipped[1])
    environment.filters["number"] = number
    environment.globals |= {
        "pm": plus_minus,
        "ratio": ratio,
        "factor": factor,
        "tellings": TELLINGS,
    }
    rows = [
        {"variant": v, "against": "base", "effect": effect, "line": line, "verdict": verdict}
        for line, (v, effect, verdict) in enumerate(
            [("a", -0.5, "lower"), ("b", -3.0, "lower"), ("c", -1.0, "lower"), ("d", 2.0, "higher")]
        )
    ]
    said = environment.get_template("parts/contrasts.j2").module.in_numbers(None, rows, 6)
    expected = (
        "In 3 of 6 comparisons the loss ends lower ([0.001](tables/effects.csv#L1) times, b "
        "against base, to [0.316](tables/effects.csv#L0) times, a against base). In 1 of 6 "
        "comparisons the loss ends higher ([100](tables/effects.csv#L3) times, d against base)."
    )
    assert " ".join(said.split()) == expected
