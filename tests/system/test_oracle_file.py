"""`fathom oracle`: numbers for other implementations, compared with the textbook in float64."""

import json

import numpy as np
import pytest
from safetensors import safe_open

from fathom.connections.schemes import SCHEMES
from fathom_study.config import installed_backends
from tests.support import naive
from tests.support.commands import exit_status

pytestmark = pytest.mark.skipif("torch" not in installed_backends(), reason="needs torch")


def written(folder, scheme, *options):
    """(Arrays by name, metadata) of the command's file."""
    file = folder / "vectors.safetensors"
    assert exit_status(["oracle", scheme, "--out", str(file), *options]) == 0
    with safe_open(file, "numpy") as opened:
        return {name: opened.get_tensor(name) for name in opened.keys()}, opened.metadata()  # noqa: SIM118


def textbook(scheme, values, reads=None):
    """The output by the textbook, from a file's x, weights and parameters."""

    def function(k, x):
        if reads is not None:
            reads.append(np.stack(x) if isinstance(x, tuple) else x)
        x = x[0] + x[1] - x[2] if isinstance(x, tuple) else x
        return np.tanh(x @ values["weights"][k])

    p = {n.removeprefix("parameters."): v for n, v in values.items() if n.startswith("param")}
    layers = [lambda x, k=k: function(k, x) for k in range(len(values["weights"]))]
    x = values["x"]
    units = x.reshape(-1, 1, x.shape[-1])
    return naive.through(scheme, p, units, layers, 4, False, per_block=2).reshape(x.shape)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_numbers_are_those_of_the_textbook(tmp_path, scheme):
    values, metadata = written(tmp_path, scheme)
    assert metadata["scheme"] == scheme
    assert json.loads(metadata["settings"])["kind"]
    assert {array.dtype for array in values.values()} == {np.dtype(np.float64)}
    reads = []
    np.testing.assert_allclose(textbook(scheme, values, reads), values["output"], rtol=1e-9)
    for k, read in enumerate(reads):
        np.testing.assert_allclose(read.reshape(values[f"reads.{k}"].shape), values[f"reads.{k}"],
                                   rtol=1e-9, atol=1e-12)  # fmt: skip

    # The slope of Σ probe · output along a random direction, by central differences.
    rng, h = np.random.default_rng(0), 1e-6  # h² of curvature, 1e-16/h of rounding
    names = [name for name in values if f"gradients.{name}" in values]
    assert {name for name in values if name.startswith("parameters.")} < {*names}
    along = {name: rng.standard_normal(values[name].shape) for name in names}
    ends = [
        (values["probe"] * textbook(
            scheme, {**values, **{n: values[n] + step * along[n] for n in names}}
        )).sum()
        for step in (h, -h)
    ]  # fmt: skip
    slope = sum((values[f"gradients.{name}"] * along[name]).sum() for name in names)
    assert slope == pytest.approx((ends[0] - ends[1]) / (2 * h), rel=1e-6)


def test_settings_and_sizes_are_those_of_the_options(tmp_path):
    settings = "{connection: mhc_paper, H_res: {iterations: 3}}"
    values, metadata = written(
        tmp_path, settings, "--layers", "6", "--width", "4", "--streams", "2"
    )
    assert values["H_res"].shape == (6, 2, 2)
    assert values["x"].shape == (2, 3, 4)
    assert json.loads(metadata["settings"])["H_res"]["iterations"] == 3


def test_unknown_scheme_is_refused(tmp_path, capsys):
    assert exit_status(["oracle", "mhc_papr", "--out", str(tmp_path / "file")]) == 1
    assert "did you mean 'mhc_paper'?" in capsys.readouterr().err


def test_the_default_depth_reaches_every_part_of_a_scheme(tmp_path):
    """Blocks enough for finished sums of blocks beside an open one, and for reads apart."""
    values, _ = written(tmp_path, "inkling2")
    larger, _ = written(tmp_path, "{connection: inkling2, block_size: 3}")
    assert not np.allclose(values["output"], larger["output"])
    functions = range(len(values["weights"]))
    assert any(values[f"reads.{k}"].shape == (3, 2, 3, 8) for k in functions)
