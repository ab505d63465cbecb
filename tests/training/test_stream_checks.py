"""`fathom judge --check` beside the contract: H_res, streams, and the scheme that is the same."""

import pytest

from fathom_study.config import Compute, installed_backends
from fathom_study.runs.stream_checks import describe
from fathom_study.runs.training import connect
from fathom_study.tasks import Problem
from tests.support.own_connections import LITE, PLAIN, write
from tests.support.specs import make_spec

pytestmark = pytest.mark.skipif("torch" not in installed_backends(), reason="needs torch")


def checks_of(tmp_path, monkeypatch, text, name, **settings):
    monkeypatch.chdir(tmp_path)
    write("own.py", text)
    connection = {"module": f"own.py:{name}", **settings}
    sizes = {"vocab": 16, "width": 8, "heads": 2, "hidden": 16, "wrap": "sublayer", "depth": 4}
    spec = make_spec(variant="mine", connection=connection, steps=10, decay="matrices", **sizes)
    return {check.name: check for check in describe(Problem(spec), connect(spec, Compute()))}


def edited(old, new):
    assert old in LITE
    return LITE.replace(old, new)


MIXED = "passed[-1] @ X +"


def test_right_connection_is_recognised(tmp_path, monkeypatch):
    checks = checks_of(tmp_path, monkeypatch, LITE, "Lite")
    assert not any(check.flagged for check in checks.values())
    assert checks["same function"].text == "mhc_lite, at perturbed parameters"
    assert checks["H_res"].text == "changes the output, and has gradients"
    assert checks["streams"].text.startswith("differ by 0.5 of the largest")


def test_unused_H_res_is_flagged(tmp_path, monkeypatch):
    """As in implementations that return streams without mixing them."""
    checks = checks_of(tmp_path, monkeypatch, edited(MIXED, "X +"), "Lite")
    assert checks["H_res"].flagged
    assert "have no effect on the output" in checks["H_res"].text
    assert checks["same function"].text == "no named scheme with parameters of these shapes"


def test_detached_H_res_is_flagged(tmp_path, monkeypatch):
    checks = checks_of(tmp_path, monkeypatch, edited(MIXED, "passed[-1].detach() @ X +"), "Lite")
    assert checks["H_res"].flagged


EQUAL = edited("post[..., None] * y", "post.mean(-1)[..., None, None] * y")
"""All streams are written alike, and reads are of sums that do not change."""


def test_streams_that_stay_copies_are_flagged(tmp_path, monkeypatch):
    checks = checks_of(tmp_path, monkeypatch, EQUAL, "Lite")
    assert checks["streams"].flagged
    assert checks["streams"].text == "are copies of each other, also after 8 steps"


def test_streams_that_begin_as_copies_are_not_flagged(tmp_path, monkeypatch):
    alike = edited("nn.Parameter(each.clone())\n", "nn.Parameter(torch.zeros(L, S))\n")
    checks = checks_of(tmp_path, monkeypatch, alike, "Lite")
    assert checks["streams"].text.startswith("start as copies, after 8 steps differ by")


def test_other_names_of_the_same_parameters_are_recognised(tmp_path, monkeypatch):
    text = LITE.replace("alpha", "scales").replace("b_res", "logits")
    checks = checks_of(tmp_path, monkeypatch, text, "Lite")
    assert checks["same function"].text == "mhc_lite, at perturbed parameters"


@pytest.mark.parametrize(("scale", "scheme"), [(1.0, "plain,"), (0.6, "no named scheme")])
def test_functions_without_parameters_are_compared(tmp_path, monkeypatch, scale, scheme):
    checks = checks_of(tmp_path, monkeypatch, PLAIN, "function", scale=scale)
    assert checks["same function"].text.startswith(scheme)
    assert set(checks) == {"same function"}
