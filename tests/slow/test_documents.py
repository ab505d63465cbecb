"""Commands of pages of docs, run."""

import pytest
from PIL import Image

from fathom_study.config import installed_backends
from fathom_study.report.figures import figures_of_study
from tests.support.commands import shell
from tests.support.project import PROJECT
from tests.system.examples import copy_of_project, sections
from tests.system.test_documents import block_with


@pytest.mark.skipif("torch" not in installed_backends(), reason="the page trains on PyTorch")
def test_one_figure_is_drawn_as_the_page_says(tmp_path, default_config):
    for name in ("config.yaml", "report"):
        (tmp_path / name).symlink_to(PROJECT / name)
    shell(block_with("train-all"), tmp_path)
    drawn = {file.stem for file in (tmp_path / "figures").glob("*.png")}
    assert drawn == {figure.name for figure in figures_of_study(default_config, "depth-torch")}
    for file in (tmp_path / "figures").glob("*.png"):
        with Image.open(file) as image:
            image.verify()


OWN = {
    "study": ("docs/own-study.md", "change-a-study", 21),
    "scheme": ("docs/own-scheme.md", "your-own-scheme", 1),
    "text": ("docs/own-text.md", "your-own-text", 1),
    "task": ("docs/own-task.md", "your-own-task", 1),
}
"""(document, section, runs)."""


@pytest.mark.skipif("torch" not in installed_backends(), reason="the sections train on PyTorch")
@pytest.mark.parametrize("name", OWN)
def test_the_commands_of_a_section_work(name, tmp_path, monkeypatch) -> None:
    document, section, count = OWN[name]
    copy_of_project(tmp_path)
    (tmp_path / "my-texts").mkdir()
    (tmp_path / "my-texts/a.txt").write_text("A text of my own, again and again.\n" * 500)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "src"))
    for language, content in sections((PROJECT / document).read_text(encoding="utf-8"))[section]:
        first, _, rest = content.partition("\n")
        if language == "sh":
            shell(content, tmp_path)
        else:
            (tmp_path / first.removeprefix("# ")).write_text(rest)
    assert not (tmp_path / "results/runs").exists()  # the folder of config.yaml
    assert len(list((tmp_path / "results").rglob("manifest.json"))) == count
