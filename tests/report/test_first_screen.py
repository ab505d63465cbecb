"""The first screen is the same in the results, page, paper and README."""

import re
import shutil

import pytest

from fathom_study.analysis.claims import load_published
from fathom_study.config import load_config
from fathom_study.report.pages.paper import write_source
from fathom_study.report.pages.render import environment_of_reports
from fathom_study.report.pages.sections import read_sections
from tests.reference.rendering import PROJECT, REFERENCE

KEPT = PROJECT / REFERENCE
TEMPLATES = PROJECT / "report/templates"


@pytest.fixture(scope="module")
def config():
    files = [PROJECT / "config.yaml", PROJECT / "workflow/presets/reference.yaml"]
    return load_config(files)


@pytest.fixture(scope="module")
def published(config):
    return load_published(PROJECT / "report/published.yaml", config)


@pytest.fixture(scope="module")
def screen(config, published):
    """(title, advice, answers) of the kept result's tables."""
    environment = environment_of_reports(config, published, TEMPLATES, KEPT)
    worth = environment.globals["worth"]
    advice = environment.get_template("words.j2").module.advice(worth, environment.globals["scale"])
    answers = environment.get_template("answers.j2").module.answers
    return worth.title, " ".join(advice.split()), answers


@pytest.fixture(scope="module")
def paper_source(config, published, tmp_path_factory):
    """Folder with the source of the paper, written from the reference's tables."""
    folder = tmp_path_factory.mktemp("reference")
    shutil.copytree(KEPT / "tables", folder / "tables")
    config = config.model_copy(update={"results": str(folder)})
    # A clone has no step tables; the paper uses only their hashes.
    for study in config.studies:
        (folder / "tables/studies" / study).mkdir(parents=True, exist_ok=True)
        (folder / "tables/studies" / study / "steps.csv.gz").touch()
    figures = KEPT / "figures"
    write_source(config, published, PROJECT / "report/paper", folder, figures, folder / "source")
    return folder / "source"


def test_every_question_has_an_answer(screen):
    """A renamed study or variant would leave a question out."""
    asked = re.findall(r'"([A-Z][^"]*\?)"', (TEMPLATES / "answers.j2").read_text("utf-8"))
    assert sorted(question for question, *_ in screen[2]) == sorted(asked)


def test_results_page_and_paper_give_the_same_answers(screen, paper_source):
    """Results and page are read from the kept files, which `make test-reference` checks."""
    title, advice, answers = screen
    (page,) = read_sections({"RESULTS.md": KEPT / "RESULTS.md"}, KEPT / "figures", {}, set())
    paper = (paper_source / "paper.typ").read_text(encoding="utf-8")
    paper_text = re.sub(r'#"((?:[^"\\]|\\.)*)";', r"\1", paper)
    shown = re.sub(r"<[^>]+>", "", str(page.introduction + page.parts)).replace("&#39;", "'")
    assert page.title == title
    for text in (paper_text, shown):
        text = " ".join(text.replace("`", "").split())  # the page has <code> for them
        for said in (title, advice.replace("`", "")):
            assert said in text
        for question, answer, *_ in answers:
            assert re.search(rf"{re.escape(question)}\W+{re.escape(answer)}", text)
