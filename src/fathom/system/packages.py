"""Installed packages, found without importing one."""

from __future__ import annotations

import importlib.metadata
import importlib.util


def is_installed(framework: str) -> bool:
    """Whether a distribution provides the module; a folder left behind does not count."""
    module = importlib.util.find_spec(framework)
    if module is None:
        return False
    if any(importlib.metadata.distributions(name=framework)):
        return True
    # A distribution of another name may provide it, as for a nightly build. Distributions also
    # share folders: mlx-cpu has files in mlx, which it does not provide. A module without an origin
    # is such a folder.
    return module.origin is not None and framework in importlib.metadata.packages_distributions()
