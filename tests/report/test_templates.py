"""Templates: numbers that their prose must not hold, and errors for mistakes in them."""

import shutil

import pytest

from fathom.settings import ConfigError
from fathom_study.report.pages.render import check_numbers, write_reports
from tests.support.reports import by_recipe, small_config, write_world

# --- numbers in prose ------------------------------------------------------------------------


@pytest.fixture
def prose(tmp_path):
    """A function that checks a template of these lines."""
    (tmp_path / "studies").mkdir()

    def check(*lines):
        (tmp_path / "PAGE.md.j2").write_text("\n".join(lines), encoding="utf-8")
        check_numbers(tmp_path)

    return check


@pytest.mark.parametrize(
    "text", ["0.5 nats", "10^-0.6", "48L", "1. First", "a loss of `4`", "`log10`"]
)
def test_a_number_typed_by_hand_is_refused(prose, text):
    with pytest.raises(ConfigError) as caught:
        prose("Fine.", "", text)
    for line in str(caught.value).splitlines():
        assert "PAGE.md.j2: line 3: the number " in line


@pytest.mark.parametrize(
    "text",
    [
        "the {{ '`log10`' }} of it",
        "{% if x == 3 %}{% endif %}",
        "{% set rows = rows_of(\n  4\n) %}",
        "{#\n 2 lines\n#}",
        "[figure](figures/48l.png)",
        '<a id="claim-2"></a>',
    ],
)
def test_links_and_expressions_may_hold_numbers(prose, text):
    prose(text)


# --- templates that cannot be filled ---------------------------------------------------------


@pytest.fixture(scope="module")
def small_world(shipped, tmp_path_factory):
    """(config, folder) of the reports of a few runs."""
    config = small_config(tmp_path_factory.mktemp("small"), seeds=[0])
    return config, write_world(config, *shipped, by_recipe)


@pytest.fixture
def broken(small_world, shipped, tmp_path):
    """Function that appends text to a copy of a template; returns the error and its place."""
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


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("RESULTS.md.j2", "{{ verdcts.rows }}", "'verdcts' is undefined"),
        ("COMPARISON.md.j2", "{{ studies[0].summary_of_all }}", "summary_of_all"),
        ("parts/demos.j2", "{% endif %}", ""),
    ],
)
def test_template_mistake_is_one_line_with_its_place(broken, name, text, problem):
    line, place = broken(name, text)
    assert place in line
    assert problem in line


def test_prose_is_checked_before_anything_is_written(broken, small_world):
    _, folder = small_world
    (folder / "COMPARISON.md").unlink()
    line, place = broken("RESULTS.md.j2", "The loss is 4.")
    assert place in line
    assert not (folder / "COMPARISON.md").exists()
