"""config.yaml: studies, validated, and the cells and specs they expand to."""

from fathom.config.config import CONTROL_DEPTHS, Compute, Config, common_depth, count_parameters
from fathom.config.entries import Contrast
from fathom.config.load import (
    check_config,
    installed_backends,
    load_config,
    parse_json,
    parse_yaml,
    read_yaml,
)
from fathom.config.study import AXES, Study
from fathom.settings import ConfigError
from fathom.spec import BACKENDS, Cell, Optimizer, Spec
from fathom.tasks import parse_spec

__all__ = [
    "AXES", "BACKENDS", "CONTROL_DEPTHS", "Cell", "Compute", "Config", "ConfigError", "Contrast",
    "Optimizer", "Spec", "Study",
    "check_config", "common_depth", "count_parameters", "installed_backends", "load_config",
    "parse_json", "parse_spec", "parse_yaml", "read_yaml",
]  # fmt: skip
