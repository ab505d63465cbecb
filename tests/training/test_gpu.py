"""A step on a GPU, as one CUDA graph or compiled by MLX, equals its operations one by one.

Tests without a GPU find operations that a GPU would refuse.
"""

from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from fathom.connections.schemes import SCHEMES
from fathom_study import backends, tasks
from fathom_study.optimizers import ScheduledValues, schedule_at
from fathom_study.spec import Muon
from tests.support.specs import (
    NOT_AROUND,
    make_spec,
    oracle_loss,
    parameters_of,
    quick_cases,
    trainer_on,
)

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
@pytest.mark.parametrize(
    ("variant", "wrap"),
    [
        *((v, "block") for v in ("baseline", "mhc", "mhc_dynamic", "mhc_lite", "mhc_causal")),
        *((v, "sublayer") for v in ("frac", "laurel", "muse_spark", "neomme", "dory")),
    ],
)
@pytest.mark.parametrize(("name", "device", "switch"), GPUS)
def test_a_step_as_one_graph(name, device, switch, variant, wrap, recipe, monkeypatch):
    spec = make_spec(variant=variant, wrap=wrap, recipe=recipe, backend=name)
    backend = connect(name, device)
    at_once = trained(trainer_on(backend, spec), spec)
    monkeypatch.setenv(switch, "off")
    one_by_one = trained(trainer_on(backend, spec), spec)
    for values, expected in zip(at_once, one_by_one, strict=True):
        assert set(values) == set(expected)
        for key, value in expected.items():
            np.testing.assert_allclose(values[key], value, rtol=1e-4, atol=1e-6, err_msg=key)


@pytest.mark.parametrize(("name", "device", "switch"), GPUS)
def test_the_first_loss_equals_the_oracle(name, device, switch):
    spec = make_spec(backend=name)
    measured, _ = trained(trainer_on(connect(name, device), spec), spec)
    batch = tasks.load("tokens").batch(spec, 0)
    expected = oracle_loss(spec, parameters_of(spec), batch)
    assert measured["loss"][0] == pytest.approx(expected, rel=1e-5)


# --- without a GPU: operations that one would refuse ----------------------------------------------

OPTIMIZERS = {
    "adamw": {"clip": 0.1, "weight_decay": 0.1, "decay": "matrices"},
    "muon": {"muon": Muon()},
}
# One scheme of each kind of connection and of coefficients.
FEW = ("plain", "mhc_causal", "hc_dynamic", "mhc_paper", "krom_hc", "altup", "qwen4_exp")
# Every network and every optimiser, but not every pair: an update depends only on shapes. For
# sub-layers, test_torch_counting takes a step of every scheme on this device.
ON_META = {
    "sublayer-adamw": ("sublayer", "adamw", FEW),
    "block-muon": ("block", "muon", SCHEMES),
    "images-muon": ("images", "muon", SCHEMES),
    "images-muon-few": ("images", "muon", FEW),
}


def few_iterations(connection):
    """The scheme with two iterations, because each operation is slow on the meta device."""
    for name in ("H_res", "constraint"):
        part = getattr(connection, name, None)
        if hasattr(part, "iterations"):
            fewer = {name: part.model_copy(update={"iterations": 2})}
            connection = connection.model_copy(update=fewer)
    return connection


@quick_cases("network, optimizer, schemes", ON_META, "images-muon-few")
def test_a_step_mixes_no_devices_and_reads_nothing_back(meta, network, optimizer, schemes):
    for scheme in (name for name in schemes if name not in NOT_AROUND[network]):
        kind = {"task": "fashion"} if network == "images" else {"wrap": network}
        spec = make_spec(variant=scheme, depth=1 if network == "sublayer" else 2, **kind)
        changed = {
            "connection": few_iterations(spec.connection),
            "optimizer": spec.optimizer.model_copy(update=OPTIMIZERS[optimizer]),
        }
        spec = spec.model_copy(update=changed)
        trainer = trainer_on(meta, spec)
        trainer.step([tasks.example_batch(spec)] * spec.accumulate, schedule_at(spec, 0))
        kept = (*trainer.params.values(), *trainer.m.values(), *trainer.measured[0].values())
        assert {x.device.type for x in kept} == {"meta"}, scheme
        saved = tasks.Problem(spec).network.connection.matrices(meta.ops, trainer.params)
        assert {x.device.type for x in saved.values()} <= {"meta"}, scheme


def test_a_step_with_noise_and_several_batches_stays_on_its_device(meta):
    gate = {"kind": "learned", "noise": True}
    spec = make_spec(connection={"connection": "mhc_static", "gate": gate}, accumulate=2, depth=2)
    trainer = trainer_on(meta, spec)
    trainer.step(tasks.Problem(spec).batches(0), schedule_at(spec, 0))
    assert {x.device.type for x in trainer.measured[0].values()} == {"meta"}


def test_a_step_that_cannot_be_recorded_runs_its_operations(connect_cpu, monkeypatch, capsys):
    """The fake recording leaves its stream current when it fails, as PyTorch's does."""
    spec, backend = make_spec(), connect_cpu("torch")
    import torch

    from fathom_study.backends.torch import Captured

    usual = SimpleNamespace(wait_stream=lambda other: None)
    current = [usual]

    @contextmanager
    def using(stream):
        before, current[0] = current[0], stream
        try:
            yield
        finally:
            current[0] = before

    @contextmanager
    def graph(_):
        current[0] = "of the recording"
        yield
        raise RuntimeError("CUDA error: capture failed\nand a long explanation")

    fakes = {"stream": using, "graph": graph, "Stream": lambda: usual, "CUDAGraph": object}
    for name, fake in {**fakes, "current_stream": lambda: current[0]}.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    trainer, plain = trainer_on(backend, spec), trainer_on(backend, spec)

    def step(*given):
        return trainer._whole_step(*given) if current == [usual] else {}

    trainer.whole_step = Captured(step)
    results, expected = trained(trainer, spec), trained(plain, spec)
    assert current == [usual]
    for values, others in zip(results, expected, strict=True):
        for key, value in others.items():
            assert values[key].tobytes() == value.tobytes(), key
    message = "fathom: no CUDA graph of a step (CUDA error: capture failed); its operations run "
    assert capsys.readouterr().err == f"{message}one by one, more slowly\n"
