"""What machine this is, without anything that names its user or its place."""

import platform
import sys
from pathlib import Path


def cpu_model() -> str:
    """The processor's marketing name, or its architecture where the system does not say."""
    if sys.platform == "darwin":
        import subprocess

        query = ["sysctl", "-n", "machdep.cpu.brand_string"]
        found = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
        return found or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def operating_system() -> str:
    """System, release and architecture, as in 'Linux 6.1 x86_64'."""
    return f"{platform.system()} {platform.release()} {platform.machine()}"


def peak_host_memory_bytes() -> int:
    """Most memory that this process has held so far."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts in kilobytes
