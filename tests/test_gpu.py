"""What only a GPU does: a step as one CUDA graph, or compiled by MLX, equals a plain one."""

import numpy as np
import pytest

from fathom import backends, tasks
from fathom.optimizers import ScheduledValues
from param_helpers import parameters_of

STEPS = 8  # three to warm up, one to record, four replays

GPUS = [
    pytest.param("torch", "cuda", "FATHOM_TORCH_GRAPH", marks=pytest.mark.gpu, id="cuda"),
    pytest.param("mlx", "gpu", "FATHOM_MLX_COMPILE", marks=pytest.mark.metal, id="metal"),
]


def connect(name, device):
    try:
        return backends.connect(name, device)
    except backends.BackendError as error:
        pytest.skip(str(error))


def trained(trainer, spec):
    for step in range(STEPS):
        trainer.step([tasks.load("tokens").batch(spec, step)], ScheduledValues(1 / (1 + step), 0.9))
    return trainer.collect(), trainer.state()


@pytest.mark.parametrize("recipe", ["mlx-defaults", "torch-defaults"])
@pytest.mark.parametrize("variant", ["baseline", "mhc", "mhc_dynamic", "mhc_lite", "mhc_causal"])
@pytest.mark.parametrize(("name", "device", "switch"), GPUS)
def test_a_whole_step_at_once_equals_its_operations_one_by_one(
    name, device, switch, variant, recipe, make_spec, start, monkeypatch
):
    spec = make_spec(variant=variant, recipe=recipe, backend=name)
    backend = connect(name, device)
    at_once = trained(start(backend, spec), spec)
    monkeypatch.setenv(switch, "off")
    one_by_one = trained(start(backend, spec), spec)
    for found, expected in zip(at_once, one_by_one, strict=True):
        assert set(found) == set(expected)
        for key, value in expected.items():
            np.testing.assert_allclose(found[key], value, rtol=1e-4, atol=1e-6, err_msg=key)


@pytest.mark.parametrize(("name", "device", "switch"), GPUS)
def test_the_first_loss_equals_the_oracle(name, device, switch, make_spec, start, oracle_loss):
    spec = make_spec(backend=name)
    measured, _ = trained(start(connect(name, device), spec), spec)
    batch = tasks.load("tokens").batch(spec, 0)
    expected = oracle_loss(spec, parameters_of(spec), batch)
    assert measured["loss"][0] == pytest.approx(expected, rel=1e-5)
