"""No change of code or config gives a cell another spec unnoticed: that would retrain its runs."""

from tests.training.spec_hashes import read_hashes, spec_hashes


def test_every_cell_has_its_recorded_spec():
    kept, result = read_hashes(), spec_hashes()
    changed = [cell for cell in kept if cell in result and kept[cell] != result[cell]]
    problems = [f"{cell}: another spec, so its runs have to be trained again" for cell in changed]
    problems += [f"{cell}: is no cell any more" for cell in kept if cell not in result]
    problems += [f"{cell}: is a new cell" for cell in result if cell not in kept]
    summary = f"{len(problems)} of {len(kept)} cells; if that is intended: make golden"
    assert not problems, "\n".join([summary, *problems[:10]])
