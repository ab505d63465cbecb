"""Platforms of runs. The workflow names figures by them, so: standard library only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

DEVICES = {"cpu": "a CPU", "cuda": "CUDA", "metal": "Metal"}
"""Devices that a claim may require, with their names in a sentence."""

FRAMEWORKS = {"torch": "PyTorch", "mlx": "MLX"}
"""Display names of backends."""


def device_of(machine: str) -> str:
    """The device of a machine, from its name: `cuda` for `cuda-nvidia-h100-linux`.

    PyTorch calls Metal `mps`. MLX calls every GPU `gpu`: on Apple's systems that is Metal.
    """
    kind = machine.partition("-")[0]
    if kind in ("gpu", "mps"):
        return "metal" if machine.endswith("-darwin") else "cuda"
    return kind


@dataclass(frozen=True)
class Platform:
    """A backend here, or on the machine that runs were imported from."""

    backend: str
    machine: str = ""
    """Empty for runs made here; else the name of the machine, as in `cpu-amd-epyc-linux`."""

    @classmethod
    def parse(cls, name: str) -> Platform:
        """The inverse of `name`."""
        backend, _, machine = name.partition("-")
        return cls(backend, machine)

    @property
    def name(self) -> str:
        """The key column `platform` of every table, and the name of a folder of figures."""
        return f"{self.backend}-{self.machine}" if self.machine else self.backend

    def __str__(self) -> str:
        return self.name


def labels_of(names: Iterable[str], labels: Mapping[str, str]) -> dict[str, str]:
    """Display names: `labels`, with those of platforms and backends, by name.

    A platform's name is the framework. If results come from several machines, it adds the machine
    of imported runs, named by `labels`, as in 'PyTorch on NVIDIA H100'.
    """
    platforms = [Platform.parse(name) for name in dict.fromkeys(names)]
    several = len({platform.machine for platform in platforms}) > 1
    display_names = {**labels, **FRAMEWORKS}
    for platform in platforms:
        framework = FRAMEWORKS.get(platform.backend, platform.backend)
        machine = labels.get(platform.machine, platform.machine) if several else ""
        display_names[platform.name] = f"{framework} on {machine}" if machine else framework
    return display_names
