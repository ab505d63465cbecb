"""The paper: text that typst shows as it is, what is said of every world of runs, and its bytes."""

import importlib.util
import json
import math
import re
import shutil
import statistics
import sys
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fathom.analysis.attribution import write_attribution
from fathom.analysis.claims import load_published, write_claims
from fathom.analysis.effects import write_effects
from fathom.analysis.tables import (
    comparison_table,
    save_tables,
    summary_table,
    write_tables,
)
from fathom.cli import main
from fathom.report import paper
from fathom.report.paper import as_literal, as_typst, write_paper, write_source
from fathom.report.render import check_numbers
from fathom.report.verify import verify
from fathom.report.views import StudyView
from fathom.settings import ConfigError
from fathom.system.files import write_json
from fathom.system.text import printable
from run_helpers import CPU_PLATFORM, config_with
from tables_helpers import CHANCE, curve, frame, groundless, half_width, run

NAN = math.nan
NASTY = '#panic("x") $x$ *b* _i_ `r` @tab <l> [c] \\ // /* "q" ~ = - + ' + "'"


@pytest.fixture(scope="module")
def typst():
    return pytest.importorskip("typst", reason="typst is not installed")


# --- text ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("hc", '#"hc";'),
        ('a "b"', r'#"a \"b\"";'),
        ("a\\b", r'#"a\\b";'),
        ("#x $ * _ ` @ < > [ ]", '#"#x $ * _ ` @ < > [ ]";'),
        ("a\nb", r'#"a\\nb";'),
        ("", ""),
        ("near 10^-0.6 at", '#"near 10";#super("−0.6");#" at";'),
        ("(3.40 ± 0.51)·10^−4", '#"(3.40 ± 0.51)·10";#super("−4");'),
        ("x^2", '#"x^2";'),
    ],
)
def test_text_becomes_a_string_of_typst(text, source):
    assert as_typst(text) == source


def of_typst(typst, expression):
    """The value of an expression, as typst itself has it."""
    found = typst.query(f"#metadata({expression}) <found>".encode(), "<found>", field="value")
    return json.loads(found)[0]


def test_typst_reads_back_what_was_written(typst):
    @settings(max_examples=20, deadline=None)
    @given(st.text(min_size=1))
    def reads_back(text):
        assert of_typst(typst, as_literal(text)) == printable(text)

    reads_back()
    assert of_typst(typst, as_literal(NASTY)) == NASTY
    # In markup too, where most of these characters mean something.
    assert of_typst(typst, f"[{as_typst(NASTY)}].text") == NASTY


# --- what the files may hold -----------------------------------------------------------------


@pytest.fixture(scope="module")
def folder_of_paper(pytestconfig):
    return pytestconfig.rootpath / "report/paper"


def test_no_number_of_the_template_is_typed_by_hand(folder_of_paper):
    check_numbers(folder_of_paper)


def test_a_number_typed_into_the_paper_is_refused(folder_of_paper, tmp_path):
    shutil.copytree(folder_of_paper, tmp_path / "paper")
    with (tmp_path / "paper/paper.typ.j2").open("a", encoding="utf-8") as template:
        template.write("The loss is 4.\n")
    with pytest.raises(ConfigError, match=r"the number 4\. is typed by hand"):
        check_numbers(tmp_path / "paper")


def statements(file):
    lines = file.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.strip() and not line.lstrip().startswith("//")]


def test_the_style_holds_no_words(folder_of_paper):
    """So no number of its own can be read as a result: there is no prose that it could be in."""
    text = "\n".join(statements(folder_of_paper / "style.typ"))
    assert "[" not in text
    strings = {s for s in re.findall(r'"([^"]*)"', text) if " " in s}
    assert strings == {"Libertinus Serif", "DejaVu Sans Mono"}


def test_formulas_are_formulas_alone(folder_of_paper):
    for line in statements(folder_of_paper / "formulas.typ"):
        assert re.fullmatch(r"#let [A-Za-z-]+ = \$[^$]*\$", line)
        assert set(re.findall(r"[0-9.]*[0-9]", line)) <= {"0", "1", "2", "10"}, line


# --- worlds of runs --------------------------------------------------------------------------

SPREAD = (1.1, 0.9, 1.3)
"""How the seeds of a cell differ."""


def sweep_config(results, **changes):
    """The two published sweeps over depth."""
    torch = {"recipe": "torch-defaults"}
    given_ = {"depths": [12, 24, 48], "depth-torch": torch, **changes}
    return config_with(results, ("depth-mlx", "depth-torch"), **given_)


def loss_of(cell):
    """The recipe sets the loss; hc at 48 layers is NaN on torch, and at chance on mlx."""
    if (cell.variant, cell.depth) == ("hc", 48):
        return NAN if cell.backend == "torch" else CHANCE
    level = {"depth-mlx": 0.01, "depth-torch": 1.0}[cell.study]
    return level * {"baseline": 2, "hc": 1.5, "mhc": 1}[cell.variant] * SPREAD[cell.seed]


def row_of(config, cell, loss):
    axes = {name: getattr(cell, name) for name in ("study", "depth", "variant", "backend", "seed")}
    values = {
        "recipe": config.studies[cell.study].recipe_name,
        "connection": cell.variant,
        "lr": 0.002,
        "loss_first": CHANCE,
        "loss_final": loss,
        "gain_first": {"baseline": 0.0, "hc": 0.58 * cell.depth, "mhc": -0.6}[cell.variant],
        "stream_difference_max": 0.0001 if cell.variant == "mhc" else NAN,
    }
    values["gain_final"] = values["gain_first"]
    if not loss < 0.95 * CHANCE:
        values["outcome"] = "diverged" if math.isnan(loss) else "at chance"
        values |= {"overflow_layer": 30, "overflow_activation_log10": 20.25}
    return run(**axes, **values)


def write_world(config, published, cells, steps, device="Test CPU"):
    """All tables of these rows; the folder of results."""
    folder = Path(config.report_folder)
    cells = frame(cells)
    summary = summary_table(cells)
    platform = {"platform": CPU_PLATFORM, "framework_version": "2.0.0", "device": device,
                "kind": "cpu", "driver": "", "blas": "", "os": "TestOS", "python": "3.11.0",
                "numpy": "2.0.0", "threads": 1, "origin": "here", "made_by": "",
                "runs": 3}  # fmt: skip
    backends = summary["backend"].unique() if "backend" in summary else []
    platforms = [{"backend": backend, **platform} for backend in backends]
    save_tables(
        {
            "cells.csv": cells,
            "steps.csv.gz": frame(steps) if steps else frame(curve([1.0])).iloc[:0],
            "summary.csv": summary,
            "comparison.csv": comparison_table(cells, summary),
            "platforms.csv": pd.DataFrame(platforms, columns=["backend", *platform]),
        },
        folder / "tables",
    )
    write_attribution(config, folder / "tables")
    write_effects(config, folder / "tables")
    write_claims(config, published, folder / "tables")
    return folder


@pytest.fixture(scope="module")
def published(pytestconfig, default_config):
    return groundless(
        load_published(pytestconfig.rootpath / "report/published.yaml", default_config)
    )


@pytest.fixture(scope="module")
def few(published):
    """As `published`, with the claims on gains alone, and no values: these take longest."""
    gains = [claim for claim in published.claims if claim.id.startswith("gain-")]
    return published.model_copy(update={"values": [], "claims": gains})


@pytest.fixture
def world(tmp_path):
    """A function that writes the tables of a world of runs; gives (config, folder)."""

    def write(published, loss_of=loss_of, device="Test CPU", **changes):
        config = sweep_config(tmp_path / "results", **changes)
        cells, steps = [], []
        for cell in config.cells():
            loss = loss_of(cell)
            if loss is None:
                cells.append({**row_of(config, cell, 1.0), "status": "missing", "origin": ""})
                continue
            cells.append(row_of(config, cell, loss))
            axes = (cell.variant, cell.depth, cell.seed, cell.study, cell.backend)
            steps += curve([CHANCE, CHANCE, loss], *axes)
        return config, write_world(config, published, cells, steps, device)

    return write


@pytest.fixture
def source(world, few, folder_of_paper, tmp_path):
    """A function that gives the paper's source of a world, which typst has read if it is here."""

    def write(loss_of=loss_of, published=few, **changes):
        config, folder = world(published, loss_of, **changes)
        root = tmp_path / "source"
        write_source(config, published, folder_of_paper, folder, folder / "figures", root)
        if has_typst():
            import typst

            pdf = typst.compile(root / "paper.typ", root=root, ignore_system_fonts=True)
            assert pdf.startswith(b"%PDF")
        text = (root / "paper.typ").read_text(encoding="utf-8")
        shown = shown_in(text).replace("hc is NaN at once", "")
        assert not re.findall(r"\b(nan|None|True|False|Undefined|dtype|Markup)\b", shown)
        return shown

    return write


def has_typst():
    return importlib.util.find_spec("typst") is not None


def shown_in(text):
    """The source with its strings as a reader sees them."""
    plain = re.sub(r'#(?:super\()?"((?:[^"\\]|\\.)*)"\)?;', r"\1", text)
    return " ".join(plain.replace("\\\\", "\\").split())


SMALL = {"depths": [48], "variants": ["hc", "mhc"]}


def test_the_paper_says_what_the_tables_hold(source, published):
    text = source(published=published)
    middle = statistics.geometric_mean(SPREAD)
    factor = math.exp(half_width([math.log(loss) for loss in SPREAD]))
    assert (
        f"[{0.01 * middle:.3f} ({0.01 * middle / factor:.4f} to {0.01 * middle * factor:.3f})]"
        in text
    )
    # Both studies and both backends, three seeds.
    assert "At 48 layers hc does not learn in 12 of 12 runs." in text
    assert "mhc does not learn" not in text
    assert "With recipe mlx-defaults the lowest mean loss is that of mhc at 12, 24 and 48" in text
    assert "On torch 3 runs are not finite and 0 at chance; on mlx 0 runs are not finite" in text
    assert "activations reach 1020.2" in text  # raised
    assert "the gain of hc grows by 0.58000 ± <0.00001 per layer" in text
    # log10(e + 3/e), for four streams.
    assert "The initial matrices alone give 0.5823" in text
    assert "The recipe decides and not the platform" in text
    assert "By chance alone about" in text
    (unmeasured,) = set(re.findall(r"([0-9]+) are not measured", text))
    (untested,) = re.findall(r"([0-9]+) claims have no test that could be made, [0-9]+ of", text)
    # One is mhc-converges-48, of which depth-beyond, which was not run, has the other test.
    (partly,) = re.findall(r"([0-9]+) claims are not measured because only a part of", text)
    assert int(unmeasured) == int(untested) + int(partly)
    assert "Not measured here: no study of images was run." in text


def test_without_any_run_the_paper_says_so(source, published):
    text = source(lambda cell: None, published, **SMALL)
    assert "Nothing was run here, so nothing can be said." in text
    assert "The study depth-mlx was not run." in text
    assert "Not counted: 6 cells of depth-mlx on torch (missing" in text
    assert "41 are not measured" in text
    # For two of the 41 no test is defined.
    assert "41 claims have no test that could be made, 39 of them for want of runs." in text
    assert "only a part of the tests" not in text


@pytest.mark.parametrize(
    ("gains", "said"),
    [
        (
            (6.0, 12.0, 24.0),
            "Yes, as reported. Over 12, 24 and 48 layers the gain of hc grows by 0.5",
        ),
        ((-6.0, -12.0, -24.0), "No, the gain does not grow with depth. Over"),
        ((6.0, 30.0, 6.5), "This is not established: the gain may not grow, or not along a line."),
    ],
)
def test_the_answer_on_the_gain_of_hc_is_that_of_its_test(source, monkeypatch, gains, said):
    gain_at = dict(zip((12, 24, 48), gains, strict=True))

    def row(config, cell, loss, usual=row_of):
        return {**usual(config, cell, loss), "gain_final": gain_at[cell.depth]}

    monkeypatch.setitem(globals(), "row_of", row)
    text = source(variants=["hc"])
    assert said in text
    assert ("the gain of hc changes by" in text) != said.startswith("Yes")
    assert ("mixing matrices, changes by" in text) != said.startswith("Yes")


def test_a_study_that_was_not_run_is_named(source):
    text = source(lambda cell: loss_of(cell) if cell.study == "depth-torch" else None, **SMALL)
    assert "The study depth-mlx was not run." in text
    assert "[depth-mlx (not run)]" in text
    assert "Shares of variance are not measured here" in text


def test_one_seed_has_no_interval(source):
    text = source(seeds=[0], **SMALL)
    assert "Without intervals, for want of seeds: depth-mlx, depth-torch." in text
    assert "[0.011]" in text  # of mhc in depth-mlx


def test_a_backend_that_was_not_run_is_named_and_texts_of_run_folders_do_nothing(source):
    there = {"device": NASTY, **SMALL}
    text = source(lambda cell: loss_of(cell) if cell.backend == "torch" else None, **there)
    assert NASTY.replace('"', '\\"') in text
    assert "The study depth-mlx was not run on mlx." in text
    assert "No study was measured in two places, so backends cannot be compared." in text


def test_runs_that_all_diverge_and_have_no_figures_are_told(source):
    text = source(lambda cell: NAN, **SMALL)
    assert "At 48 layers mhc does not learn in 12 of 12 runs." in text
    assert "[NaN (3 of 3)]" in text
    # Nor is any figure drawn of them.
    assert "_The figure depth scaling of depth-mlx, torch is not drawn here._" in text
    assert "#drawing(" not in text
    assert "@fig-" not in text


SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"></svg>'
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108000000003a7e9b55"
    "0000000a49444154789c636000000002000148afa4710000000049454e44ae426082"
)


def test_a_vector_figure_is_taken_before_pixels(source, tmp_path):
    folder = tmp_path / "results/figures/depth-mlx/torch"
    folder.mkdir(parents=True)
    (folder / "depth_scaling.svg").write_text(SVG)
    for name in ("depth_scaling", "loss_comparison"):
        (folder / f"{name}.png").write_bytes(PNG)
    text = source(**SMALL)
    assert '#drawing("figures/depth-mlx/torch/depth_scaling.svg"' in text
    assert '#drawing("figures/depth-mlx/torch/loss_comparison.png"' in text
    assert "@fig-gain" in text


def test_contrasts_and_images_have_sections(few, folder_of_paper, tmp_path):
    images = {"task": "fashion", "variants": ["resnet", "mhc_causal"], "streams": 1, "depths": [4],
              "seeds": [0], "model": {"width": 16}, "recipe": "mlx-defaults"}  # fmt: skip
    contrasts = {"variants": ["baseline", "mhc"], "depths": [4], "contrasts": [
        {"asks": "Does it matter?", "pairs": [["mhc", "baseline"]]}]}  # fmt: skip
    config = config_with(tmp_path, ("parts", "images"), parts=contrasts, images=images)
    rows = [run(study="images", depth=4, variant=v, test_accuracy=a, loss_final=0.9,
                chance_loss=math.log(10)) for v, a in (("resnet", 0.625), ("mhc_causal", 0.75))
            ]  # fmt: skip
    rows += [run(study="parts", depth=4, variant=v, seed=s, loss_final=loss * 10**s)
             for v, loss in (("baseline", 1.0), ("mhc", 10.0)) for s in (0, 1, 2)]  # fmt: skip
    folder = write_world(config, few, rows, [])
    root = tmp_path / "source"
    write_source(config, few, folder_of_paper, folder, folder / "figures", root)
    text = shown_in((root / "paper.typ").read_text(encoding="utf-8"))
    assert "[mhc against baseline], [torch], [10 ± 0], [10], [higher]" in text
    assert "In a study of single ingredients (parts), 1 of 1 effect on the final loss" in text
    assert "[images], [mhc_causal], [torch], [0.75], [0.9], [none]" in text
    assert "At chance the accuracy is 0.1." in text
    if has_typst():
        write_paper(config, few, folder_of_paper, folder, folder / "figures")
        assert (folder / "fathom.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("text", ("== Text", "a trigram", "[baseline], [torch], [3.5]")),
        ("other", ("== The study words", "[baseline], [4], [torch], [2.5], [3.5]")),
    ],
)
def test_every_kind_of_study_has_a_section(few, folder_of_paper, tmp_path, monkeypatch, kind, said):
    monkeypatch.setattr("fathom.report.paper.figures_of", lambda family: {})
    monkeypatch.setattr("fathom.config.Study.report", kind)
    text = {"task": "text", "recipe": "unit-variance", "variants": ["baseline"], "depths": [4],
            "model": {"length": 8, "width": 16, "heads": 4, "hidden": 32}}  # fmt: skip
    config = config_with(tmp_path, ("words",), words=text)
    rows = [run(study="words", variant="baseline", depth=4, loss_final=2.5, validation_bpc=3.5,
                unigram_bpc=4.8, bigram_bpc=3.6, trigram_bpc=2.9)]  # fmt: skip
    folder = write_world(config, few, rows, [])
    root = tmp_path / "source"
    write_source(config, few, folder_of_paper, folder, folder / "figures", root)
    found = shown_in((root / "paper.typ").read_text(encoding="utf-8"))
    assert all(text in found for text in said)


# --- what the template asks of the tables ----------------------------------------------------


def view_of(*rows):
    cells = frame(*rows)
    tables = {"cells": cells, "summary": summary_table(cells)}
    return StudyView("a", config_with().studies["a"], tables)


def test_a_leader_is_the_lowest_everywhere_and_nothing_that_diverged():
    view = view_of(
        run(variant="hc", loss_final=1.0), run(variant="mhc", loss_final=2.0),
        run(variant="hc", loss_final=3.0, depth=16), run(variant="mhc", loss_final=2.0, depth=16),
        run(variant="hc", loss_final=1.0, depth=4), run(variant="mhc", loss_final=2.0, depth=4),
        run(variant="hc", loss_final=2.0, depth=4, backend="mlx"),
        run(variant="mhc", loss_final=1.0, depth=4, backend="mlx"),
    )  # fmt: skip
    assert paper.leaders(view) == {"hc": [8], "mhc": [16]}
    alone = view_of(
        run(variant="hc", loss_final=1.0, outcome="diverged"), run(variant="mhc", loss_final=2.0)
    )
    assert paper.leaders(alone) == {}


def test_failures_are_summed_over_studies():
    one = view_of(run(depth=4), run(outcome="diverged"), run(seed=1))
    other = view_of(run(outcome="at chance"), run(depth=16, outcome="diverged"))
    assert paper.failures([one, other], "mhc") == [(8, 2, 3), (16, 1, 1)]


@pytest.mark.parametrize(
    ("words", "text"), [(["a"], "a"), (["a", "b"], "a and b"), ([1, 2, 3], "1, 2 and 3")]
)
def test_words_in_a_sentence(words, text):
    assert paper.listed(words) == text


# --- the PDF ---------------------------------------------------------------------------------


def test_the_same_tables_make_the_same_bytes(typst, world, few, folder_of_paper, tmp_path):
    config, folder = world(few, **SMALL)
    found = []
    for _ in range(2):
        write_paper(config, few, folder_of_paper, folder, folder / "figures")
        found.append((folder / "fathom.pdf").read_bytes())
    assert found[0] == found[1]
    assert b"CreationDate" not in found[0]
    assert str(tmp_path).encode() not in found[0]


def test_what_typst_cannot_read_is_one_line(typst, world, few, folder_of_paper, tmp_path):
    config, folder = world(few, **SMALL, seeds=[0])
    copy = shutil.copytree(folder_of_paper, tmp_path / "paper")
    with (copy / "paper.typ.j2").open("a", encoding="utf-8") as template:
        template.write("#strange\n")
    with pytest.raises(ConfigError, match=r"paper\.typ\.j2: typst: unknown variable: strange"):
        write_paper(config, few, copy, folder, folder / "figures")
    assert not (folder / "fathom.pdf").exists()


def test_a_misspelt_name_is_found_by_its_line(world, few, folder_of_paper, tmp_path):
    config, folder = world(few, **SMALL, seeds=[0])
    copy = shutil.copytree(folder_of_paper, tmp_path / "paper")
    template = copy / "paper.typ.j2"
    text = template.read_text(encoding="utf-8")
    template.write_text("{{ verdcts }}\n" + text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"paper\.typ\.j2: line 1: 'verdcts' is undefined"):
        write_source(config, few, copy, folder, folder / "figures", tmp_path / "source")


def test_without_typst_the_command_says_so_in_one_line(monkeypatch, pytestconfig, capsys):
    monkeypatch.chdir(pytestconfig.rootpath)
    monkeypatch.setitem(sys.modules, "typst", None)
    with pytest.raises(SystemExit) as ended:
        main(["paper"])
    assert ended.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        "fathom: this needs typst, which is not installed here; "
        "pip install -e '.[workflow]' brings it"
    )


@pytest.fixture
def unmade(few, folder_of_paper, tmp_path):
    """Results of a config of which nothing was trained: (config, folder, templates)."""
    config = sweep_config(tmp_path / "results", **SMALL)
    folder, templates = Path(config.report_folder), tmp_path / "templates"
    templates.mkdir()
    shutil.copytree(folder_of_paper, tmp_path / "paper")
    write_json(folder / "config.json", config.resolved())
    write_tables(config, folder / "tables")
    write_attribution(config, folder / "tables")
    write_effects(config, folder / "tables")
    write_claims(config, few, folder / "tables")
    return config, folder, templates


def problems_of_paper(config, published, templates):
    found = verify(config, published, templates).problems
    return [problem for problem in found if "fathom.pdf" in problem]


def test_verify_makes_the_paper_again(typst, unmade, few):
    config, folder, templates = unmade
    file = folder / "fathom.pdf"
    assert problems_of_paper(config, few, templates) == [f"{file}: missing"]
    write_paper(config, few, paper.paper_of(templates), folder, folder / "figures")
    assert problems_of_paper(config, few, templates) == []
    file.write_bytes(file.read_bytes() + b"\n")
    changed = [f"{file}: is not what its inputs give"]
    assert problems_of_paper(config, few, templates) == changed


def test_verify_cannot_check_the_paper_without_typst(unmade, few, monkeypatch):
    config, folder, templates = unmade
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert problems_of_paper(config, few, templates) == []
    (folder / "fathom.pdf").write_bytes(b"%PDF")
    (problem,) = problems_of_paper(config, few, templates)
    assert problem.startswith(f"{folder}/fathom.pdf: not checked, since typst is not installed")
