"""Small results made by hand, the page made of them, and a parser for pages."""

import math
from dataclasses import asdict
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd

from fathom_study.analysis.claims import Published
from fathom_study.analysis.claims.evidence import Judgement
from fathom_study.analysis.run_tables import summary_table
from fathom_study.analysis.tables import save_tables
from fathom_study.report.pages.page import write_page
from tests.support.runs import config_with
from tests.support.tables import CHANCE, curve, frame, run, save_by_study

TEMPLATES = Path(__file__).parents[2] / "report" / "page"
SOURCES = {"demo": {"title": "The demo", "platform": "a laptop"}}
PUBLISHED = Published(notes=[], sources=SOURCES, values=[], claims=[])


class Page(HTMLParser):
    """Every element of a page with its attributes, and the text outside scripts and styles."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.text, self.tag = [], "", ""
        self.feed(text)
        self.ids = [attrs["id"] for _, attrs in self.elements if "id" in attrs]

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.tag = tag

    def handle_endtag(self, tag):
        self.tag = ""

    def handle_data(self, data):
        self.text += "" if self.tag in ("script", "style") else data

    def all(self, tag, attribute):
        return [attrs[attribute] for t, attrs in self.elements if t == tag and attribute in attrs]


def trained(losses, variant="mhc", depth=8, seed=0, backend="torch", study="a"):
    """(row of cells.csv, rows of steps.csv) of a run with these losses."""
    axes = {"variant": variant, "depth": depth, "seed": seed, "backend": backend, "study": study}
    final = losses[-1] if math.isfinite(losses[-1]) else math.nan  # cells.csv has finite numbers
    return run(**axes, loss_final=final), curve(losses, **axes)


def write_results(folder, runs, reports, studies=("a",), **changes):
    """Write tables of these runs and these reports to `folder`; return their config."""
    config = config_with(folder, studies, **changes)
    ends, steps = zip(*runs, strict=True) if runs else ((), ())
    table = frame(*steps) if steps else frame(curve([CHANCE])).iloc[:0]
    cells = frame(*ends) if ends else frame({**run(), "status": "missing"})
    tables = {"steps.csv.gz": table, "cells.csv": cells, "summary.csv": summary_table(cells)}
    save_by_study(tables, folder / "tables", studies)
    for name, text in reports.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return config


def write_claims(folder, verdicts):
    """Write verdicts.csv and claims.csv with a claim and its test for each verdict, in order.

    Test i observes i + 0.5 nats.
    """
    of_test = {"test": "level", "scale": "", "confidence": 0.95, "decides": True, "control": False}
    of_claim = {"source": "demo", "elsewhere": "", "studies": "a", "seeds": 3, "tests": 1}
    of_claim |= dict.fromkeys(("undecided", "other_scale", "in_part"), False)
    claims, rows = [], []
    for i, verdict in enumerate(verdicts):
        judgement = Judgement(
            verdict, variant="mhc", metric="loss_final", unit="nats", observed=i + 0.5, low=0.25,
            high=0.75, needed_high=1.0, cases=1, holding=1, seeds=3,
        )  # fmt: skip
        name = {"claim": f"claim-{i}", "verdict": verdict, "statement": f"Claim {i} <holds>."}
        claims.append(asdict(judgement) | of_test | name)
        rows.append(of_claim | name)
    tables = {"claims.csv": pd.DataFrame(claims), "verdicts.csv": pd.DataFrame(rows)}
    save_tables(tables, folder / "tables")


def make_page(config):
    """Write the page of these results and return its text."""
    folder = Path(config.report_folder)
    write_page(config, PUBLISHED, TEMPLATES, folder, folder / "figures")
    return (folder / "index.html").read_text(encoding="utf-8")
