"""Benchmarks: released connections compute the same step as ours."""

import importlib
import math

import pytest

from fathom_study import tasks
from tests.support.specs import parameters_off_symmetry, trainer_on
from tests.system.test_bench import our_step

RELEASED = {
    # scheme: (backend, package, depth); 7 blocks have several sums and one separate q, k, v read
    "deepseek_v4": ("torch", "transformers", 3),
    "inkling2": ("torch", "transformers", 7),
    "deepseek_v41": ("mlx", "mlx_lm", 3),
    "attn_res_block": ("mlx", "mlx_lm", 7),
}


@pytest.mark.parametrize("scheme", RELEASED)
def test_released_module_is_the_same_function_as_ours(steps, scheme, connect_cpu, monkeypatch):
    """Queries are not zero, because a zero query makes each read a mean."""
    name, package, depth = RELEASED[scheme]
    pytest.importorskip(package, reason=f"{package} is not installed")
    spec = steps.spec_for("sublayer-default", scheme, name, depth=depth)
    spec = spec.model_copy(update={"batch_size": 2})
    params = parameters_off_symmetry(spec)
    monkeypatch.setattr(tasks.Problem, "initial_parameters", lambda self: params)
    _, batch, ours = our_step(trainer_on(connect_cpu(name), spec), spec)
    released = importlib.import_module(f"released_{name}").Steps(spec)
    losses = [released.step(*batch)["loss"] for _ in range(2)]
    assert math.isclose(losses[0], ours["loss"], rel_tol=1e-6)
    assert losses[1] < losses[0]
