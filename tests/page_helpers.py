"""Results made by hand, small enough to say what their page must show; and a page as it is read."""

from html.parser import HTMLParser
from pathlib import Path

from fathom.analysis.tables import summary_table
from fathom.report.page import write_page
from run_helpers import config_with
from tables_helpers import CHANCE, curve, frame, run, save_by_study

PROJECT = Path(__file__).parents[1]
TEMPLATES = PROJECT / "report" / "page"

VOID = {"meta", "link", "img", "input", "br", "hr"}


class Page(HTMLParser):
    """Every element of a page, with its attributes; what is not well-formed is an error."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.words = [], [], []
        self.feed(text)
        self.close()
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"an attribute twice: {tag} {names}"
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> in {self.open}"
        self.open.pop()

    def handle_data(self, data):
        if not {"script", "style"} & set(self.open):
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())

    def all(self, tag, attribute):
        return [attrs[attribute] for t, attrs in self.elements if t == tag and attribute in attrs]

    @property
    def ids(self):
        return [attrs["id"] for _, attrs in self.elements if "id" in attrs]


def trained(losses, variant="mhc", depth=8, seed=0, backend="torch", study="a"):
    """(its row of cells.csv, its rows of steps.csv) of a run with these losses."""
    axes = {"variant": variant, "depth": depth, "seed": seed, "backend": backend, "study": study}
    return run(**axes, loss_final=losses[-1]), curve(losses, **axes)


def write_results(folder, runs, reports, studies=("a",), **changes):
    """Tables of these runs and reports of these texts in `folder`; returns their config.

    `changes`: of the studies, as `config_with` takes them.
    """
    config = config_with(folder, studies, **changes)
    ends, steps = zip(*runs, strict=True) if runs else ((), ())
    table = frame(*steps) if steps else frame(curve([CHANCE])).iloc[:0]
    cells = frame(*ends) if ends else frame({**run(), "status": "missing"})
    tables = {"steps.csv.gz": table, "cells.csv": cells, "summary.csv": summary_table(cells)}
    save_by_study(tables, folder / "tables", config.studies)
    for name, text in reports.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return config


def make_page(config):
    """The text of the page of these results."""
    folder = Path(config.report_folder)
    write_page(config, TEMPLATES, folder, folder / "figures")
    return (folder / "index.html").read_text(encoding="utf-8")
