"""Processor, operating system and memory, without anything that identifies a user or a host."""

import ctypes
import platform
import re
import sys
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")

CORE = ("cpu family", "model", "stepping", "CPU implementer", "CPU part")
"""Fields of /proc/cpuinfo that distinguish processors of one name, on x86 and on Arm."""

VECTORS = ("avx512f", "avx2", "avx", "sve", "asimd")
"""Vector extensions that select a library's kernels, the widest first."""


def cpu_model() -> str:
    """The processor's marketing name, or its architecture if that is unknown."""
    if sys.platform == "darwin":
        import subprocess

        query = ["sysctl", "-n", "machdep.cpu.brand_string"]
        name = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
        return name or platform.machine()
    try:
        for line in CPUINFO.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def processor() -> str:
    """The processor in full, as in 'AMD EPYC, family 26, model 2, stepping 1, avx512f'.

    Libraries choose their arithmetic, and thus the last digits, by more than the name: on Linux
    this adds family, model, stepping and the widest vector extension.
    """
    try:
        text = CPUINFO.read_text(encoding="utf-8")
    except OSError:
        return cpu_model()
    # Each core has a paragraph; the first stands for all.
    facts = dict(re.findall(r"^(\S.*?)\s*: *(.*)$", text.partition("\n\n")[0], re.MULTILINE))
    words = [cpu_model()]
    words += [f"{key.lower().removeprefix('cpu ')} {facts[key]}" for key in CORE if key in facts]
    flags = f"{facts.get('flags', '')} {facts.get('Features', '')}".split()
    words += [name for name in VECTORS if name in flags][:1]
    return ", ".join(words)


def operating_system() -> str:
    """System, release and architecture, as in 'Linux 6.1 x86_64'."""
    return f"{platform.system()} {platform.release()} {platform.machine()}"


def peak_host_memory_bytes() -> int:
    """Peak resident memory of this process."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts in kilobytes


def keep_freed_memory() -> None:
    """Let glibc reuse freed memory instead of returning it to the system.

    Every training step allocates the same large arrays again, and the system has to zero fresh
    pages: up to a tenth of a step's time. Does nothing with another C library.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    m_trim_threshold, m_mmap_max, m_arena_max = -1, -4, -8  # names and values: <malloc.h>
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(m_trim_threshold, -1)  # never give back the top of the heap …
    mallopt(m_mmap_max, 0)  # … take large arrays from the heap too …
    mallopt(m_arena_max, 1)  # … and use one heap for all threads
