"""The reference in this checkout."""

import pytest

from tests.reference.rendering import BUNDLES, PROJECT, REFERENCE


@pytest.fixture(scope="module")
def committed():
    folder = PROJECT / REFERENCE
    if not (folder / BUNDLES).is_dir():
        pytest.skip(f"there is no {REFERENCE / BUNDLES} in this checkout")
    return folder
