"""The paper: text that typst shows literally, its sentences on made-up runs, its bytes."""

import json
import math
import re
import shutil

import pytest
import typst
from hypothesis import given, settings
from hypothesis import strategies as st

from fathom.settings import ConfigError
from fathom.system.text import printable
from fathom_study.report.pages.paper import as_literal, as_typst, write_paper, write_source
from tests.support.project import PROJECT
from tests.support.reports import (
    DEPTHS,
    IMAGES,
    TEXT,
    by_recipe,
    rows_of,
    study_config,
    write_tables,
)
from tests.support.runs import config_with
from tests.support.tables import run

NAN = math.nan
PAPER = PROJECT / "report/paper"
NASTY = '#panic("x") $x$ *b* _i_ `r` @tab <l> [c] \\ // /* "q" ~ = - + ' + "'"


# --- text ------------------------------------------------------------------------------------


def of_typst(expression):
    """The value of an expression, evaluated by typst."""
    query = f"#metadata({expression}) <value>".encode()
    return json.loads(typst.query(query, "<value>", field="value"))[0]


def test_typst_reads_back_written_text():
    @settings(max_examples=20, deadline=None)
    @given(st.text(min_size=1))
    def reads_back(text):
        assert of_typst(as_literal(text)) == printable(text)

    reads_back()
    assert of_typst(as_literal(NASTY)) == NASTY
    # In markup too, where most of these characters mean something.
    assert of_typst(f"[{as_typst(NASTY)}].text") == NASTY


# --- worlds of runs --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def few(shipped):
    """Only published claims on gains, and no values, because these take longest."""
    published = shipped[0]
    gains = [claim for claim in published.claims if claim.id.startswith("gain-")]
    return published.model_copy(update={"values": [], "claims": gains})


@pytest.fixture
def source(few, tmp_path):
    """Function that returns the paper's source for runs, which typst can compile."""

    def write(loss_of=by_recipe, published=few, device="Test CPU", labels=None, **changes):
        config = study_config(tmp_path / "results", **changes)
        config = config.model_copy(update={"labels": labels or {}})
        folder = write_tables(config, published, *rows_of(config, loss_of), device=device)
        root = tmp_path / "source"
        write_source(config, published, PAPER, folder, folder / "figures", root)
        pdf = typst.compile(root / "paper.typ", root=root, ignore_system_fonts=True)
        assert pdf.startswith(b"%PDF")
        shown = shown_in((root / "paper.typ").read_text(encoding="utf-8"))
        assert not re.findall(r".* of 0 runs.*", shown)
        abstract = shown.partition("*Abstract.*")[2].partition(" = The question")[0]
        sentences = re.split(r"(?<=[a-z0-9)]\.) (?=[A-Z])", abstract)
        assert len(sentences) == len(set(sentences)) > 2
        named = {*re.findall(r"arXiv:([0-9.]+[0-9])", shown)}
        assert named <= {
            *re.findall(r"arxiv.org/abs/([0-9.]+)", shown.partition("= References")[2])
        }
        assert not re.findall(r"\b(nan|None|True|False|Undefined|dtype|Markup)\b", shown)
        return shown

    return write


def shown_in(text):
    """The source, with strings as a reader sees them."""
    plain = re.sub(r'#(?:super\()?"((?:[^"\\]|\\.)*)"\)?;', r"\1", text)
    return " ".join(plain.replace("\\\\", "\\").split())


SMALL = {"depths": [48], "variants": ["hc", "mhc"]}


def test_paper_states_the_values_of_the_tables(source, shipped):
    """The plain network has two more depths; no sentence on another may mention them."""
    text = source(
        lambda cell: (
            by_recipe(cell) if cell.variant == "baseline" or cell.depth in DEPTHS else None
        ),
        shipped[0],
        depths=[6, *DEPTHS, 96],
    )
    # As in the reports: the logarithms of 0.9, 1 and 1/0.9.
    assert "[0.010 (0.0077 to 0.013)]" in text
    assert "changes by 0.58000 ± <0.00001 per layer over 12, 24, 48 layers" in text
    named = [line for line in re.split(r"\. |; |\n", text) if re.search(r"\b(m?hc)\b", line)]
    prose = [line for line in named if "|" not in line and "[" not in line]
    assert len(prose) > 3
    assert not [line for line in prose if re.search(r"\b(6|96)(, 12| layers)", line)]
    # log10(e + 3/e), for four streams.
    assert "The initial matrices alone give 0.5823" in text
    (unmeasured,) = set(re.findall(r"([0-9]+) are not measured", text))
    (untested,) = re.findall(r"([0-9]+) claims could not be tested, [0-9]+ of", text)
    (partly,) = re.findall(r"([0-9]+) claims? (?:is|are) not measured because some tests", text)
    assert int(unmeasured) == int(untested) + int(partly)


@pytest.mark.parametrize(
    ("loss_of", "part"),
    [
        (lambda cell: None, "Not counted: 6 cells of “depth-mlx” on PyTorch (missing"),
        (lambda cell: NAN, "[NaN (3 of 3)]"),
        (lambda cell: by_recipe(cell) if cell.backend == "torch" else None, "not run on MLX."),
    ],
    ids=["no run", "diverged", "one backend"],
)
def test_paper_of_few_runs_is_whole_and_escapes_texts_of_run_folders(source, loss_of, part):
    text = source(loss_of, device=NASTY, **SMALL)
    assert part in text
    assert (NASTY.replace('"', '\\"') in text) == ("6 cells" not in part)
    assert "#drawing(" not in text and "@fig-" not in text  # no figure is drawn of them


def test_every_kind_of_study_has_a_section(few, tmp_path):
    contrasts = {"variants": ["baseline", "mhc"], "depths": [2, 4], "contrasts": [
        {"question": "Does it matter?", "pairs": [["mhc", "baseline"]]}]}  # fmt: skip
    words = {**TEXT, "variants": ["baseline"], "depths": [4]}
    config = config_with(
        tmp_path, ("parts", "images", "words", "pictures"),
        parts=contrasts, images={**IMAGES, "part": "causal"}, words=words, pictures=IMAGES,
    )  # fmt: skip
    rows = [
        run(study=study, depth=4, variant=v, test_accuracy=a, score=a, loss_final=0.9,
            score_metric="test_accuracy", score_chance=0.1)
        for study in ("images", "pictures") for v, a in (("resnet", 0.625), ("mhc_causal", 0.75))
    ]  # fmt: skip
    rows += [run(study="parts", depth=4, variant=v, seed=s, loss_final=loss * 10**s)
             for v, loss in (("baseline", 1.0), ("mhc", 10.0)) for s in (0, 1, 2)]  # fmt: skip
    rows += [run(study="parts", depth=2, variant="baseline")]  # a control, in no contrast
    rows += [run(study="words", variant="baseline", depth=4, score=3.5, validation_bpc=3.5,
                 score_metric="validation_bpc", trigram_bpc=2.9)]  # fmt: skip
    folder = write_tables(config, few, rows, [])
    root = tmp_path / "source"
    write_source(config, few, PAPER, folder, folder / "figures", root)
    text = shown_in((root / "paper.typ").read_text(encoding="utf-8"))
    row = "[1], [1], [mhc against baseline, 4 layers: × 10 (× 10 to × 10)]"
    for part in (f"([parts], [4 layers], [PyTorch], {row})", "*pictures*", "2.9 (a trigram model)",
                 "of 2 variants is 0.75 at 4 layers (mhc_causal); chance is 0.1"):  # fmt: skip
        assert part in text, part
    write_paper(config, few, PAPER, folder, folder / "figures")
    assert (folder / "fathom.pdf").read_bytes().startswith(b"%PDF")


# --- the PDF ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(few, tmp_path_factory):
    """(config, folder) of the tables of a few runs."""
    config = study_config(tmp_path_factory.mktemp("small"), **SMALL, seeds=[0])
    return config, write_tables(config, few, *rows_of(config, by_recipe))


def test_the_same_tables_make_the_same_bytes(small, few):
    config, folder = small
    made = []
    for _ in range(2):
        write_paper(config, few, PAPER, folder, folder / "figures")
        made.append((folder / "fathom.pdf").read_bytes())
    (folder / "fathom.pdf").unlink()
    assert made[0] == made[1]
    assert b"CreationDate" not in made[0]
    assert str(folder.parent).encode() not in made[0]


def test_error_of_typst_is_one_line(small, few, tmp_path):
    config, folder = small
    shutil.copytree(PAPER.parent / "templates", tmp_path / "templates")
    copy = shutil.copytree(PAPER, tmp_path / "paper")
    with (copy / "paper.typ.j2").open("a", encoding="utf-8") as template:
        template.write("#strange\n")
    with pytest.raises(ConfigError, match=r"paper\.typ\.j2: typst: unknown variable: strange"):
        write_paper(config, few, copy, folder, folder / "figures")
    assert not (folder / "fathom.pdf").exists()
