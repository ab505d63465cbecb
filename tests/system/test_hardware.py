"""Description of the processor in a manifest."""

from pathlib import Path

import pytest

from fathom_study.system import hardware

X86 = """processor	: {}
cpu family	: 25
model		: 17
model name	: AMD EPYC
stepping	: 1
flags		: fpu sse2 avx avx2 avx512f
"""
X86 = X86.format(0) + "\n" + X86.format(1)


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        (X86, "AMD EPYC, family 25, model 17, stepping 1, avx512f"),
        (X86.replace(" avx512f", ""), "AMD EPYC, family 25, model 17, stepping 1, avx2"),
        (
            "model name : Some Arm\nCPU implementer\t: 0x41\nCPU part : 0xd40\nFeatures : fp asimd",
            "Some Arm, implementer 0x41, part 0xd40, asimd",
        ),
    ],
)
def test_processors_of_one_name_have_different_descriptions(
    cpuinfo: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "CPUINFO", tmp_path / "cpuinfo")
    hardware.CPUINFO.write_text(cpuinfo, encoding="utf-8")
    monkeypatch.setattr(hardware.sys, "platform", "linux")
    assert hardware.processor() == expected
