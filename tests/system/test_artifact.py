"""CITATION.cff and docs/artifact.md: numbers agree with the config, commands work."""

import re
from collections import Counter

from tests.support.markdown import parsed
from tests.support.project import PROJECT

PAGE = PROJECT / "docs/artifact.md"
ROW = r"^\| `([a-z0-9-]+)` \| (\d+) \|$"


def rows():
    """Number of trainings by study, from the table."""
    matches = re.findall(ROW, PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return {study: int(trainings) for study, trainings in matches}


def commands(containing):
    """The only block of shell commands with these words."""
    text = PAGE.read_text(encoding="utf-8")
    blocks = [t.content for t in parsed(text) if t.type == "fence" and t.info == "sh"]
    (block,) = [block for block in blocks if containing in block]
    return block


def test_table_has_every_study_and_the_total(default_config):
    assert rows() == Counter(cell.study for cell in default_config.cells())
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert f"all {sum(rows().values())} trainings" in text
