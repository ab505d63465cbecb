"""Users' connections: PyTorch modules in files that a config names."""

import importlib
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from fathom.connections import module
from fathom_study.cli import main
from fathom_study.config import (
    Compute,
    ConfigError,
    check_config,
    installed_backends,
    load_config,
    parse_spec,
)
from fathom_study.runs.contract import examine
from fathom_study.runs.folder import read_rows
from fathom_study.runs.training import connect, run_cell
from fathom_study.runs.validate import validate_run
from fathom_study.tasks import Problem
from tests.support.commands import refusal
from tests.support.own_connections import LATE, LEAKING, LITE, PLAIN, SHIFTED, write
from tests.support.specs import MODELS, make_spec

pytestmark = pytest.mark.skipif("torch" not in installed_backends(), reason="needs torch")

CLASS = {"module": "plain.py:Class"}
STUDY = {
    "task": "tokens", "recipe": "torch-defaults", "depths": [2], "seeds": [0], "steps": 4,
    "batch_size": 4, "backends": ["torch"],
    "optimizer": {"lr": 0.01, "weight_decay": 0.1, "decay": "matrices"},
    "model": {"vocab": 16, "length": 8, "width": 8, "heads": 2, "hidden": 16, "wrap": "sublayer"},
}  # fmt: skip


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write("plain.py", PLAIN)
    write("lite.py", LITE)


def config_of(*variants, **changes):
    study = {**STUDY, "variants": ["baseline", *variants], **changes}
    return check_config({"results": "results", "studies": {"own": study}})


def spec_of(connection, seed=0, **changes):
    config = config_of({"mine": connection}, seeds=[seed], **changes)
    return next(config.spec(c) for c in config.cells() if c.variant == "mine")


def train(spec, name="run"):
    run_cell(spec, Path(name))
    return read_rows(Path(name))


def losses(spec, name="run"):
    return np.array([row["loss"] for row in train(spec, name)])


# --- known schemes, rewritten ---------------------------------------------------------------------


def test_rewritten_mhc_lite_has_the_metrics_of_mhc_lite():
    """Both round in float32; at a rate of 0.01 the four steps keep differences near 2⁻²⁴."""
    ours = train(spec_of({"module": "lite.py:Lite"}), "ours")
    theirs = train(spec_of({"connection": "mhc_lite"}), "theirs")
    for name in ("loss", "stream_similarity", "stream_difference", "grad_norm"):
        one, other = ([row[name] for row in rows] for rows in (ours, theirs))
        # A norm adds squares of a thousand rounded numbers; a difference loses digits.
        np.testing.assert_allclose(one, other, rtol=2e-6 if name == "loss" else 1e-4)
        assert len(set(other)) > 1
    for name in ("gain_proxy_log10_max_entry", "amax_forward_log10"):
        one, other = ([row[name] for row in rows] for rows in (ours, theirs))
        # Before the first update only rounding differs. AdamW then moves a number whose gradient
        # is rounding by up to the rate, 0.01; times α, 0.01, this moves a logit by 1e-4.
        np.testing.assert_allclose(one[0], other[0], atol=1e-6)
        np.testing.assert_allclose(one, other, atol=1e-4)


@pytest.mark.parametrize("wrap", ["block", "sublayer"])
@pytest.mark.parametrize("name", ["function", "Class"])
def test_rewritten_plain_has_the_losses_of_plain(name, wrap):
    """For blocks that add their input, it is subtracted and added again."""
    model = {**STUDY["model"], "wrap": wrap}
    ours = losses(spec_of({"module": f"plain.py:{name}"}, model=model), "ours")
    theirs = losses(spec_of("baseline", model=model), "theirs")
    np.testing.assert_allclose(ours, theirs, rtol=2e-6)


RECURRENT = """
import torch

class Whole(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.cell = torch.nn.GRU(width, width, batch_first=True)

    def mix(self, x):
        return self.cell(x)[0]

    def forward(self, x, functions):
        for function in functions:
            x = self.mix(x + function(x))
        return x

class Stepped(Whole):
    def __init__(self, width):
        torch.nn.Module.__init__(self)
        self.cell = torch.nn.GRUCell(width, width)

    def mix(self, x):
        states = [torch.zeros_like(x[:, 0])]
        for token in x.unbind(1):
            states.append(self.cell(token, states[-1]))
        return torch.stack(states[1:], 1)
"""
"""`torch.nn.GRU` keeps its parameters also in a list of its own; a cell does not."""


def test_a_recurrent_layer_trains_as_its_cell():
    write("recurrent.py", RECURRENT)
    whole, stepped = (
        losses(spec_of({"module": f"recurrent.py:{n}"}), n) for n in ("Whole", "Stepped")
    )
    assert len(set(stepped)) == len(stepped)
    np.testing.assert_allclose(whole, stepped, rtol=2e-6)


def test_the_example_of_the_documents_trains_and_keeps_its_contract():
    text = (Path(__file__).parents[2] / "docs/library.md").read_text(encoding="utf-8")
    section = text.partition("## Your own connection")[2]
    code = section.partition("```python\n")[2].partition("```")[0]
    assert len(code.splitlines()) <= 20
    kept = (Path(__file__).parents[2] / "docs/examples/my_connection.py").read_text("utf-8")
    assert kept.partition("\n\n")[2] == code.partition("\n")[2]
    checks = checks_of(code, "TwoStreams", start=0.5)
    assert not any(check.failed for check in checks.values())
    spec = spec_of({"module": "own.py:TwoStreams", "start": 0.5})
    assert "connection.gain" in Problem(spec).network.parameters()
    assert np.isfinite(losses(spec)).all()


# --- in a config ----------------------------------------------------------------------------------


def test_the_path_is_relative_to_the_config_that_names_it():
    Path("mine").mkdir()
    write("mine/plain.py", PLAIN)
    study = {**STUDY, "variants": ["baseline", {"one": CLASS}]}
    write("mine/config.yaml", json.dumps({"studies": {"own": study}}))
    config = load_config(["mine/config.yaml"])
    assert config.connection("own", "one").module == "mine/plain.py:Class"
    # The workflow writes the config and reads it from another folder.
    Path("results").mkdir()
    write("results/config.json", json.dumps(config.resolved()))
    again = load_config(["results/config.json"])
    assert again.connection("own", "one") == config.connection("own", "one")


@pytest.mark.parametrize(
    "value",
    [
        {"module": "plain.py:function", "scale": 2},
        {"connection": {"module": "plain.py:function", "scale": 2}},
        {"connection": {"module": "plain.py:function"}, "scale": 2},
    ],
)
def test_settings_are_arguments(value):
    assert spec_of(value).connection.settings == {"scale": 2}
    assert losses(spec_of(value), "two")[0] != losses(spec_of("baseline"), "one")[0]


def test_a_spec_is_read_without_its_file():
    spec = spec_of(CLASS)
    Path("plain.py").unlink()
    assert parse_spec(json.loads(spec.json()), "spec") == spec


def test_a_job_of_the_workflow_trains_from_the_spec_alone():
    spec = spec_of({"module": "plain.py:function", "scale": 2})
    main(["job", spec.json(), "--out", "job"])
    assert read_rows(Path("job"))[-1]["loss"] == losses(spec)[-1]


def test_weights_cannot_be_checked_without_the_file_of_the_connection():
    spec = spec_of(CLASS, weights=True)
    run_cell(spec, Path("run"))
    Path("run/verdict.json").unlink()
    assert validate_run(Path("run"), spec).status == "measured"
    Path("plain.py").unlink()
    module._load.cache_clear()  # as in another process
    run = validate_run(Path("run"), spec)
    assert run.status == "corrupt"
    assert "plain.py cannot be read" in run.reason


def test_a_changed_file_makes_its_runs_stale_and_no_others():
    for folder, variant in (("own", CLASS), ("plain", "baseline")):
        run_cell(spec_of(variant), Path(folder))
        assert validate_run(Path(folder), spec_of(variant)).counts
    write("plain.py", PLAIN + "\n")
    run = validate_run(Path("own"), spec_of(CLASS))
    assert run.status == "stale"
    assert "connection.digest" in run.reason
    assert validate_run(Path("plain"), spec_of("baseline")).counts


def test_a_file_that_changes_during_a_training_is_refused():
    spec = spec_of(CLASS)
    other = spec.connection.model_copy(update={"digest": "0" * 16})
    spec = spec.model_copy(update={"connection": other})
    with pytest.raises(ConfigError, match=r"plain\.py differs from that of this training"):
        run_cell(spec, Path("run"))


def test_initial_parameters_follow_the_seed():
    write(
        "drawn.py",
        PLAIN.replace("class Class(nn.Module):", "import torch\n\n\nclass Class(nn.Module):\n"
        "    def __init__(self, width):\n        super().__init__()\n"
        "        self.a, self.b = (nn.Parameter(torch.randn(width)) for _ in 'ab')\n"),
    )  # fmt: skip
    at = {
        seed: Problem(spec_of({"module": "drawn.py:Class"}, seed)).initial_parameters()
        for seed in (0, 1)
    }
    again = Problem(spec_of({"module": "drawn.py:Class"}, 1)).initial_parameters()
    of_torch = importlib.import_module("torch")
    of_torch.manual_seed(1)
    for name in "ab":
        expected = of_torch.randn(8).numpy()
        np.testing.assert_array_equal(at[1][f"connection.{name}"], expected)
        np.testing.assert_array_equal(again[f"connection.{name}"], expected)
        assert (at[0][f"connection.{name}"] != expected).all()


@pytest.mark.parametrize("decay", ["matrices", "all"])
def test_a_module_exempts_parameters_from_decay_and_names_their_rates(decay):
    from fathom_study.optimizers import optimizer_config

    write("rates.py", LITE.replace("    no_decay", "    rates = {'alpha': 0.01}\n    no_decay"))
    optimizer = {"lr": 0.01, "weight_decay": 0.1, "decay": decay}
    spec = spec_of({"module": "rates.py:Lite"}, optimizer=optimizer)
    groups = optimizer_config(spec, Problem(spec).network.parameters()).groups
    by_name = {name: group for group in groups for name in group.names}
    own = {n for n, group in by_name.items() if n.startswith("connection.") and group.decay}
    assert own == {"connection.phi_pre", "connection.phi_post", "connection.phi_res"}
    rates = {name: group.lr / spec.optimizer.lr for name, group in by_name.items()}
    assert rates.pop("connection.alpha") == pytest.approx(0.01)
    assert set(rates.values()) == {1}


BAD = {
    "missing": ({"module": "no.py:Class"}, {}, r"no\.py cannot be read"),
    "no name": ({"module": "plain.py:Clas"}, {}, "no class or function Clas; did you mean 'Class'"),
    "form": ({"module": "plain.py"}, {}, r"must be like my_connection\.py:TwoStreams"),
    "outside": ({"module": "../plain.py:Class"}, {}, "outside this folder"),
    "argument": ({"module": "plain.py:function", "scal": 2}, {}, "unexpected keyword.*scal"),
    "syntax": ({"module": "broken.py:Class"}, {}, r"broken\.py: line 1: "),
    "no module": ({"module": "plain.py:Other"}, {}, r"is not a torch\.nn\.Module"),
    "no verbs": ({"module": "plain.py:Empty"}, {}, r"has no forward\(x0, functions\), nor open"),
    "mlx": (
        CLASS, {"backends": ["torch", "mlx"]},
        "is a PyTorch module and cannot train on mlx",
    ),
    "exempt": ({"module": "exempt.py:Lite"}, {}, "no parameter b_per; did you mean 'b_pre'"),
    "rates": ({"module": "rates.py:Lite"}, {}, "rates: no parameter alph; did you mean 'alpha'"),
    "infinite": ({"module": "plain.py:function", "scale": math.inf}, {}, "scale: cannot be recor"),
    "fact": ({**CLASS, "width": 3}, {}, "width: the network sets it"),
    "settings": ({**CLASS, "settings": 3}, {}, "settings: must be a mapping"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_mistake_is_one_line_with_the_variant(case):
    write("plain.py", PLAIN + "\n\nclass Other: ...\n\n\nclass Empty(nn.Module): ...\n")
    write("exempt.py", LITE.replace('"b_pre",', '"b_per",'))
    write("rates.py", LITE.replace("    no_decay", "    rates = {'alph': 0.01}\n    no_decay"))
    write("broken.py", "class Class(:")
    value, changes, message = BAD[case]
    said = refusal(config_of, {"mine": value}, **changes, error=ConfigError)
    assert re.search(message, said)
    assert "studies.own.variants.mine" in said


# --- the contract ---------------------------------------------------------------------------------

KEPT = PLAIN.replace("return function(x0,", "return function(x0 + KEEP,").replace(
    "class Class(nn.Module):\n",
    "class Class(nn.Module):\n    def __init__(self, width):\n        super().__init__()\n"
    "        self.kept, self.norm = {}, nn.BatchNorm1d(width, affine=False)\n\n",
)
"""A connection whose input gets an addend, KEEP."""

BROKEN = {
    "causality": (LEAKING, "Leaking", "leaks the future"),
    "causality in training": (
        LEAKING.replace("x.mean(dim=1, keepdim=True)", "(x.mean(1, True) if self.training else x)"),
        "Leaking", "leaks the future",
    ),
    "batch": (
        LEAKING.replace("dim=1", "dim=0"), "Leaking", "mixes sequences of the batch",
    ),
    "second pass of a kept array": (
        KEPT.replace("KEEP", "self.kept.setdefault('x', x0.detach())"), "Class", "keep no array",
    ),
    "second pass of an array that all modules keep": (
        "seen = {}\n" + LEAKING.replace("x.mean(dim=1, keepdim=True)", "seen.setdefault(0, x0)"),
        "Leaking", "uses an array of an earlier pass",
    ),
    "second pass of a statistic": (
        KEPT.replace("KEEP", "self.norm(x0.flatten(0, 1)).view_as(x0)"), "Class", "statistic",
    ),
    "second pass of another generator": (
        "import random\n" + KEPT.replace("KEEP", "(random.random() if self.training else 0)"),
        "Class", "in training at the same seed; draw only with torch",
    ),
    "at the start": (PLAIN.replace("scale * f(x)", "1e30 * f(x) * 1e30"), "Class", "not finite"),
    "seed": (
        "import itertools\n\nbuilt = itertools.count()\n"
        + LEAKING.replace("torch.zeros(width)", "torch.full((width,), 0.1 * next(built))")
        .replace("x.mean(dim=1, keepdim=True)", "x"),
        "Leaking", "weight start differently at the same seed",
    ),
    "second pass": (
        LEAKING.replace("x.mean(dim=1, keepdim=True)", "torch.rand_like(x)")
        .replace("zeros", "ones"), "Leaking", "gives different numbers; .* only in training",
    ),
    "gradients that are not finite": (
        # The root's slope is infinite at zero, where its value is finite.
        LEAKING.replace("self.weight * x.mean(dim=1, keepdim=True)", "self.weight.abs().sqrt()"),
        "Leaking", "not finite at the start: .*weight",
    ),
    "gradients": (
        LEAKING.replace("self.weight * x.mean(dim=1, keepdim=True)", "0 * self.weight"),
        "Leaking", "none reaches weight",
    ),
    "gradients of functions": (
        PLAIN.replace("return x", "return x.detach()"), "Class",
        "none reaches the functions; remove detach or no_grad",
    ),
    "shapes": (
        LEAKING.replace("f(x)", "f(x.double())"), "Leaking",
        r"the input of function 0 is \[4, 8, 8\] float64, but must be \[4, 8, 8\] float32",
    ),
    "parameters": (
        LEAKING.replace("x.mean(dim=1, keepdim=True)", "self.late")
        .replace("        x = ", "        self.late = nn.Parameter(x0[0, 0])\n        x = ", 1),
        "Leaking", "a pass creates late",
    ),
    "order": (
        PLAIN.replace("in functions", "in functions[::-1]"), "Class",
        "of 4 functions it calls 3, 2, 1, 0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_contract_is_one_line_and_trains_nothing(name):
    text, made, message = BROKEN[name]
    write("broken.py", text)
    spec = spec_of({"module": f"broken.py:{made}"})
    said = refusal(run_cell, spec, Path("run"), error=ConfigError)
    check = re.split(" of | in | that ", name)[0]
    assert re.match(rf"broken\.py:{made}: {check}: .*{message}", said)
    assert not Path("run/manifest.json").exists()


def checks_of(text, made, **settings):
    write("own.py", text)
    spec = spec_of({"module": f"own.py:{made}", **settings})
    problem = Problem(spec)
    return {c.name: c for c in examine(problem, connect(spec, Compute()))}


@pytest.mark.parametrize("task", MODELS)
def test_a_connection_that_holds_passes_on_every_task(task):
    write("own.py", PLAIN)
    spec = make_spec(task=task, variant="own", connection={"module": "own.py:Class"})
    checks = [*examine(Problem(spec), connect(spec, Compute()))]
    assert [check for check in checks if check.failed] == []
    assert "gradients" in [check.name for check in checks]


@pytest.mark.parametrize(
    "read",
    [
        # A leak inside each pair of tokens, so none crosses the middle of a window.
        "x.unflatten(1, (-1, 2)).mean(2, keepdim=True).expand(-1, -1, 2, -1).flatten(1, 2)",
        "x0.mean(dim=1, keepdim=True)",  # an exchange of tokens does not change it
    ],
)
def test_a_leak_in_pairs_or_from_the_input_is_found(read):
    text = LEAKING.replace("x.mean(dim=1, keepdim=True)", read)
    assert checks_of(text, "Leaking")["causality"].failed


MISTAKES = {
    "a failing import": ("import nothing_of_this_name\n" + PLAIN, r"ModuleNotFoundError.*line 1"),
    "an exit": ("raise SystemExit(0)\n" + PLAIN, "SystemExit"),
    "in __init__": (
        PLAIN + "    def __init__(self):\n        {}['a']\n",
        r"KeyError: 'a' \(line 16\)",
    ),
    "a pass": (PLAIN.replace("return function(", "return 1 / 0; function("), r"ZeroDivisionError"),
    "a tuple": (PLAIN.replace("return function(x0, functions)", "return (x0, 1)"), "is a tuple"),
    "a list of modules": (
        PLAIN + "    def __init__(self):\n        super().__init__()\n"
        "        self.parts = [nn.Linear(8, 8)]\n",
        r"parts holds parameters that PyTorch does not find; use torch\.nn\.ModuleList",
    ),
    "a complex parameter": (
        "import torch\n" + PLAIN + "    def __init__(self):\n        super().__init__()\n"
        "        self.g = nn.Parameter(torch.ones(1, dtype=torch.complex64))\n",
        "g is complex",
    ),
    "a lazy parameter": (
        PLAIN + "    def __init__(self):\n        super().__init__()\n"
        "        self.mix = nn.LazyLinear(8)\n",
        r"mix\.weight is lazy, so it has no shape yet; build its module with sizes",
    ),
    "no_decay": (PLAIN + "    no_decay = 5\n", "no_decay: must be a list"),
    "rates": (PLAIN + "    rates = {'a': -1}\n", "rates: must be a dict of factors"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_an_error_in_a_file_is_one_line_that_names_it(name, fathom):
    text, message = MISTAKES[name]
    write("own.py", text)
    write("own.yaml", json.dumps({"results": "out", "studies": {"own": {
        **STUDY, "variants": ["baseline", {"mine": {"connection": {"module": "own.py:Class"}}}],
    }}}))  # fmt: skip
    command = ["train", "own", "--variant", "mine", "--depth", "2", "--backend", "torch"]
    status, _, errors = fathom(*command, "--seed", "0", "--out", "run", "--config", "own.yaml")
    assert status == 1
    (line,) = [line for line in errors if line.startswith("fathom:")]
    assert re.search(rf"own\.py:Class: .*({message})", line)
    assert not Path("run/manifest.json").exists()


TRACES = {
    "no streams": ('return {"H_res": X}', "must return a dict of H_res and streams"),
    "of each token": (
        'return {"H_res": torch.stack(passed), "streams": X.movedim(-2, 0)}',
        r"H_res must be \[4, S, S\], the mean over positions, but is \[4, ",
    ),
    "other streams": (
        'return {"H_res": torch.zeros(4, 3, 3), "streams": X.movedim(-2, 0)}',
        r"streams must be \[3, …\], but is \[4, ",
    ),
}


@pytest.mark.parametrize("name", TRACES)
def test_a_wrong_trace_is_one_line(name):
    wrong, message = TRACES[name]
    write("own.py", LITE.partition('        return {"H_res"')[0] + f"        {wrong}\n")
    spec = spec_of({"module": "own.py:Lite"})
    said = refusal(run_cell, spec, Path("run"), error=ConfigError)
    assert re.match(rf"own\.py:Lite: trace: {message}", said)


def test_a_file_beside_it_is_refused(monkeypatch):
    monkeypatch.syspath_prepend(Path.cwd())
    write("neighbour_of_own.py", "GAIN = 0.5\n")
    write("own.py", "from neighbour_of_own import GAIN\n" + PLAIN)
    said = refusal(spec_of, {"module": "own.py:Class"}, error=ConfigError)
    assert "own.py imports neighbour_of_own from a file beside it" in said


def test_an_error_in_a_pass_after_the_checks_is_one_line():
    write("late.py", LATE)
    spec = spec_of({"module": "late.py:Late"}, steps=20)
    said = refusal(run_cell, spec, Path("run"), error=ConfigError)
    assert said.startswith("late.py:Late: AssertionError: not again (line ")


def test_scores_are_of_evaluation_mode_and_training_repeats():
    """Dropout draws by the seed of the run and the step; an evaluation draws nothing."""
    text = KEPT.replace("KEEP", "nn.functional.dropout(x0, 0.5, self.training)")
    checks = checks_of(text, "Class")
    assert not any(check.failed for check in checks.values())
    assert "draws at random" in checks["mode"].text
    spec = spec_of({"module": "own.py:Class"})
    one, again = train(spec, "one"), train(spec, "again")
    assert [row["loss"] for row in one] == [row["loss"] for row in again]

    runs = {}
    for gain in (1, 100):
        write("own.py", KEPT.replace("KEEP", f"(0 if self.training else {gain} * x0.roll(1, 2))"))
        runs[gain] = train(spec_of({"module": "own.py:Class"}), f"run{gain}")
    assert [r["loss"] for r in runs[1]] == [r["loss"] for r in runs[100]]
    assert runs[1][-1]["exact_loss"] != runs[100][-1]["exact_loss"]


BRANCHES = {
    "class": ("class Own(nn.Module):\n    def forward(self, x, fx):\n        return x + 2 * fx\n"),
    "with the function": (
        "class Own(nn.Module):\n    def forward(self, x, f):\n        return x + 2 * f(x)\n"
    ),
    "function": "def Own(x, fx):\n    return x + 2 * fx\n",
}


@pytest.mark.parametrize("name", BRANCHES)
def test_a_connection_of_one_branch_gets_the_three_lines_that_make_it_right(name):
    """The lines, added as the message says, give the losses of the plain network at scale 2."""
    text = "from torch import nn\n\n\n" + BRANCHES[name]
    write("own.py", text)
    with pytest.raises(ConfigError) as caught:
        train(spec_of({"module": "own.py:Own"}))
    first, *lines = str(caught.value).splitlines()
    assert len(lines) == 3
    renamed = "Own" if name == "function" else "forward"
    assert f"{renamed} takes one branch" in first
    write("own.py", text.replace(f"def {renamed}", "def step") + "\n" + "\n".join(lines) + "\n")
    ours = losses(spec_of({"module": "own.py:Own"}), "ours")
    np.testing.assert_array_equal(
        ours, losses(spec_of({"module": "plain.py:function", "scale": 2}), "theirs")
    )


def test_reading_the_previous_token_is_causal():
    checks = checks_of(SHIFTED, "Shifted")
    assert not any(check.failed for check in checks.values())
    names = "seed", "shapes", "second pass", "mode", "gradients", "causality", "batch"
    assert {*names, "at the start"} == {*checks}
    assert checks["at the start"].text.startswith("equals the plain network")


def test_a_counter_of_training_passes_is_named():
    """Each pass has a module of its own, so that a warm-up by such a counter never advances."""
    text = LEAKING.replace("x.mean(dim=1, keepdim=True)", "x").replace(
        "        x = ",
        "        self.step = getattr(self, 'step', 0) + self.training\n        x = ",
        1,
    )
    second = checks_of(text, "Leaking")["second pass"]
    assert not second.failed and "the next pass does not see step of this one" in second.text


def test_parameters_without_a_gradient_at_first_are_named():
    """α multiplies φ x, and φ starts at zero."""
    checks = checks_of(LITE, "Lite")
    assert "zero at first: alpha" in checks["gradients"].text
    assert not checks["gradients"].failed
    assert "logits differ" in checks["at the start"].text
