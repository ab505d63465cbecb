"""What the tests of data sets share: what is in a folder, and refusals."""

import pytest

from fathom.datasets import DataError


def contents(folder):
    """Every file of a folder, hidden ones too."""
    return {file.name: file.read_bytes() for file in folder.iterdir()} if folder.exists() else {}


def refusal(function, *arguments, error=DataError):
    """The message that a call is refused with, which must be a single line."""
    with pytest.raises(error) as caught:
        function(*arguments)
    message = str(caught.value)
    assert "\n" not in message
    return message
