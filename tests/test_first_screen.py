"""The first screen is the same in the results, page, paper and README."""

import re
import shutil

import pytest

from fathom.analysis.claims import load_published
from fathom.config import load_config
from fathom.report.kept import first_screen
from fathom.report.page.markdown import read_sections
from fathom.report.paper import paper_of, write_source
from reference_helpers import PROJECT, REFERENCE

KEPT = PROJECT / REFERENCE
TEMPLATES = PROJECT / "report/templates"


def screen_of(folder):
    """The first screen of a folder's table of answers, in the words of published.yaml."""
    config = load_config([PROJECT / "config.yaml"])
    published = load_published(PROJECT / "report/published.yaml", config)
    return first_screen(folder, published, config.labels)


@pytest.fixture(scope="module")
def paper_source(tmp_path_factory):
    """Folder with the source of the paper, written from the reference's tables."""
    folder = tmp_path_factory.mktemp("reference")
    shutil.copytree(KEPT / "tables", folder / "tables")
    files = [PROJECT / "config.yaml", PROJECT / "workflow/presets/reference.yaml"]
    config = load_config(files, {"results": str(folder)})
    # A clone has no step tables; the paper uses only their hashes.
    for study in config.studies:
        (folder / "tables/studies" / study).mkdir(parents=True, exist_ok=True)
        (folder / "tables/studies" / study / "steps.csv.gz").touch()
    published = load_published(PROJECT / "report/published.yaml", config)
    figures = KEPT / "figures"
    write_source(config, published, paper_of(TEMPLATES), folder, figures, folder / "source")
    return folder / "source"


def test_results_page_and_paper_give_the_same_answers(paper_source):
    """Results and page are read from the kept files, which `make test-reference` checks."""
    screen = screen_of(KEPT)
    (page,) = read_sections({"RESULTS.md": KEPT / "RESULTS.md"}, KEPT / "figures", {}, set())
    paper = (paper_source / "paper.typ").read_text(encoding="utf-8")
    told = re.sub(r'#"((?:[^"\\]|\\.)*)";', r"\1", paper)
    shown = re.sub(r"<[^>]+>", "", str(page.introduction + page.parts)).replace("&#39;", "'")
    assert page.title == screen.title
    for text in (told, shown):
        text = " ".join(text.split())
        for said in (screen.title, screen.advice):
            assert said in text
        for row in screen.answers:
            assert re.search(rf"{re.escape(row.question)}\W+{re.escape(row.answer)}", text)


def test_readme_gives_the_answers_of_the_kept_result():
    readme = (PROJECT / "README.md").read_text(encoding="utf-8")
    kept = screen_of(KEPT)
    found = block(readme, "finding")
    assert kept.title in found and kept.advice in found
    rows = [line.strip("| ").split(" | ") for line in block(readme, "answers").splitlines()[3:]]
    told = [[question, answer] for question, answer, _ in rows]
    assert told == [[row.question, f"**{row.answer}**"] for row in kept.answers]
    assert all(question in (KEPT / "RESULTS.md").read_text("utf-8") for question, *_ in rows)
    for *_, cell in rows:
        links = re.findall(r"\]\((\S+)#L(\d+)\)", cell)
        assert links
        for file, line in links:
            assert 1 < int(line) <= len((PROJECT / file).read_text("utf-8").splitlines())


def block(text, name):
    """Text between the markers `<!-- name -->` and `<!-- end -->`."""
    return text.partition(f"<!-- {name} -->")[2].partition("<!-- end -->")[0]
