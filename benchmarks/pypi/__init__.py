"""Steps through PyPI's hyper-connections, a file for each backend that it runs on.

Not a part of fathom: it is what `fathom bench` sets dynamic connections against.
"""

from __future__ import annotations

from dataclasses import fields

from fathom import tasks
from fathom.config import Spec
from fathom.models.connections.connection import Connection
from fathom.models.transformer import Transformer


def network_in(connection: Connection, spec: Spec) -> Transformer:
    """The spec's transformer in this connection."""
    ours = tasks.Problem(spec).network
    network = Transformer(**{field.name: getattr(ours, field.name) for field in fields(ours)})
    vars(network)["connection"] = connection  # where `cached_property` looks first
    return network
