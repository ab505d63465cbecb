"""What machine this is, without anything that names its user or its place; and its memory."""

import ctypes
import platform
import sys
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")

CORE = ("cpu family", "model", "stepping", "CPU implementer", "CPU part")
"""What tells processors of one name apart in /proc/cpuinfo: of x86, then of Arm."""

VECTORS = ("avx512f", "avx2", "avx", "sve", "asimd")
"""Extensions that arithmetic is chosen by, the widest first."""


def cpu_model() -> str:
    """The processor's marketing name, or its architecture where the system does not say."""
    if sys.platform == "darwin":
        import subprocess

        query = ["sysctl", "-n", "machdep.cpu.brand_string"]
        found = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
        return found or platform.machine()
    try:
        for line in CPUINFO.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def processor() -> str:
    """The processor in full, as in 'AMD EPYC, family 26, model 2, stepping 1, avx512f'.

    Processors of one name may differ in what libraries choose their arithmetic by, and so in last
    digits: on Linux, family, model, stepping, and the widest vectors.
    """
    try:
        lines = CPUINFO.read_text(encoding="utf-8").splitlines()
    except OSError:
        return cpu_model()
    # Each core has a paragraph; the first stands for all.
    facts = {
        key.strip(): value.strip() for key, _, value in (x.partition(":") for x in lines[::-1])
    }
    words = [cpu_model()]
    words += [f"{key.lower().removeprefix('cpu ')} {facts[key]}" for key in CORE if key in facts]
    flags = f"{facts.get('flags', '')} {facts.get('Features', '')}".split()
    words += [name for name in VECTORS if name in flags][:1]
    return ", ".join(words)


def operating_system() -> str:
    """System, release and architecture, as in 'Linux 6.1 x86_64'."""
    return f"{platform.system()} {platform.release()} {platform.machine()}"


def peak_host_memory_bytes() -> int:
    """Most memory that this process has held so far."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts in kilobytes


def keep_freed_memory() -> None:
    """Let glibc keep what is freed for the next request, instead of returning it to the system.

    Every training step asks for the same large arrays again, and fresh pages must first be zeroed
    by the system: up to a tenth of a step's time. Does nothing under another C library.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    m_trim_threshold, m_mmap_max, m_arena_max = -1, -4, -8  # names and values: <malloc.h>
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(m_trim_threshold, -1)  # never give back the top of the heap …
    mallopt(m_mmap_max, 0)  # … take large arrays from the heap too …
    mallopt(m_arena_max, 1)  # … and from one heap, whichever thread asks
