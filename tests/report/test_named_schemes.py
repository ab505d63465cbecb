"""Descriptions of schemes and variants: docs/schemes.md, reports and `fathom schemes`."""

import re

import pytest
from rich.cells import cell_len

from fathom.connections.schemes import SCHEMES, resolve
from fathom_study.config import ConfigError, parse_yaml
from fathom_study.report.tables.scheme_words import (
    STREAMS,
    about_schemes,
    as_yaml,
    read_costs,
    timed_on,
    variant_rows,
)
from tests.support.runs import check_config


def scheme_of(value, streams=STREAMS):
    return resolve(value, SCHEMES, streams, "test")


# --- named schemes -------------------------------------------------------------------------------


@pytest.mark.parametrize("streams", [2, 4])
@pytest.mark.parametrize("name", SCHEMES)
def test_the_yaml_of_a_scheme_gives_the_scheme(name, streams):
    (settings,) = parse_yaml(as_yaml(name), name)["connections"].values()
    assert scheme_of(settings, streams) == scheme_of(name, streams)


@pytest.mark.parametrize(
    ("name", "per_layer", "once"),
    [
        ("plain", 0, 0),
        ("hc_causal", 0, 12 * 12),
        ("mhc_static", 4 + 4 + 16 + 1, 4),
        ("deepseek_v4", 24 * 4 * 128 + 24 + 3, 4 * 4 * 128 + 4 + 1),
        # The rank is 20: 320/2048 of 128.
        ("qwen4_exp", (1 + 20 + 20 + 4) * 4 * 128, (1 + 20 + 20) * 4 * 128),
        ("muse_spark", 128 + 64, 0),  # every other function has a gain
        ("frac", (2 + 2 + 1) * 64 + 3 + 4 + 4 + 2, 0),
        # Twelve queries: all reads but the first, and the output; the sixth block adds k and v.
        ("inkling2", 128, 2 * 128),
        ("denseformer", 0, 2 + 3 + 4 + 5 + 6 + 7),
    ],
)
def test_parameters_by_hand(name, per_layer, once):
    assert int(about_schemes()[name]["parameters"]) == 12 * per_layer + once


COSTS = """\
variant,backend,machine,over,ratio,ratio_low,ratio_high,operations,bytes
plain,torch,here,plain,1,1,1,2000,400
hc_demo,torch,here,plain,1.256,1.2,1.3,,
hc_demo,mlx,here,plain,2,1.5,2.55,,
hc_demo,torch,,,,,,2023,900
hc_demo,torch,there,plain,9,9,9,,
mhc_demo,torch,there,plain,9,9,9,,
"""


def test_costs_come_from_the_table(tmp_path):
    """Times are from the machine with most timings; counts are from any."""
    file = tmp_path / "costs.csv"
    assert "cost, torch" not in about_schemes(file)["hc_demo"]
    file.write_text(COSTS, encoding="utf-8")
    costs = {
        "operations": "1.012", "bytes": "2.250",
        "cost, torch": "1.26 (1.20 to 1.30)", "cost, mlx": "2.00 (1.50 to 2.55)",
    }  # fmt: skip
    assert read_costs(file) == {"hc_demo": costs}
    assert timed_on(file) == "here"
    assert costs.items() <= about_schemes(file)["hc_demo"].items()


def test_a_table_without_a_column_is_refused_with_the_command(tmp_path):
    file = tmp_path / "costs.csv"
    file.write_text("variant\nhy_v4\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"^[^\n]*needs columns .*: python bench"):
        read_costs(file)


# --- the command ---------------------------------------------------------------------------------


def test_a_short_name_gives_its_scheme_in_every_network(fathom):
    _, out, _ = fathom("schemes", "mhc")
    assert set(parse_yaml(out, "printed")["connections"]) == {"mhc_dynamic", "mhc_demo"}
    assert "  # source: mHC-demo\n" in out


@pytest.mark.parametrize("width", [80, 160])
def test_the_list_fits_a_screen_and_the_long_one_has_every_component(width, fathom, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    lines = fathom("schemes")[1].splitlines()
    assert len(lines) == len(SCHEMES) + 2
    assert [line.split()[0] for line in lines[1:-1]] == list(SCHEMES)
    assert max(map(cell_len, lines[:-1])) <= width
    assert any("DeepSeek V4, in tr" in line for line in lines)
    long_list = fathom("schemes", "--long")[1].split("\n")
    assert {*SCHEMES} <= {*long_list}
    assert "  H_res: sinkhorn" in "\n".join(long_list)


@pytest.mark.parametrize("name", ["mhcpaper", "../x", "{}", "\udcff", "'"])
def test_an_unknown_scheme_is_refused_in_one_line(name, fathom):
    status, _, (line,) = fathom("schemes", name)
    assert status == 1
    assert re.fullmatch(r"fathom: unknown scheme .*\(known: plain, .*\)", line)


# --- variants of a study -------------------------------------------------------------------------

VARIANTS = {
    # label: (settings, scheme, differs from the scheme in, differs from the study in)
    "baseline": (None, "plain", "", ""),
    "mhc": (None, "mhc_demo", "", "accumulate 4"),
    "paper_5": (
        {"connection": "mhc_paper", "H_res": {"iterations": 5}, "streams": 2},
        "mhc_paper", "streams 2, H_res sinkhorn (iterations 5)", "",
    ),
    "off": (
        {"connection": "own", "pre": {"start": {"on": 0}}, "steps": 7, "optimizer": {"lr": 0.5}},
        "mhc_lite", "pre sigmoid (start (on 0)), H_res raw (start (diagonal 0.25))",
        "optimizer (lr 0.5), steps 7",
    ),
    "whole": ({"kind": "causal", "added": 0.5}, "", "constraint exp, added 0.5", ""),
    "recipe": (
        {"connection": "hc", "recipe": "torch-defaults"}, "hc_demo", "", "recipe torch-defaults",
    ),
}  # fmt: skip


def test_variants_in_words(default_config):
    study = default_config.studies["depth-mlx"].model_dump(mode="json", exclude_unset=True)
    study["variants"] = [{n: row[0]} if row[0] else n for n, row in VARIANTS.items()]
    study |= {"accumulate": {"mhc": 4}, "contrasts": [], "exclude": []}
    own = {"connection": "mhc_lite", "H_res": {"kind": "raw", "start": {"diagonal": 0.25}}}
    config = check_config({"studies": {"a": study}, "connections": {"own": own}})
    words = ("variant", "scheme", "settings", "training")
    rows = [tuple(row[word] for word in words) for row in variant_rows(config, "a")]
    assert rows == [(label, *row[1:]) for label, row in VARIANTS.items()]
