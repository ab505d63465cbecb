"""config.yaml: studies, validated, and the cells and specs they expand to."""

from fathom.settings import ConfigError
from fathom_study.config.config import (
    CONTROL_DEPTHS,
    Compute,
    Config,
    common_depth,
    count_parameters,
)
from fathom_study.config.entries import Contrast
from fathom_study.config.load import (
    check_config,
    installed_backends,
    load_config,
    parse_json,
    parse_yaml,
    read_yaml,
)
from fathom_study.config.study import AXES, Study
from fathom_study.spec import BACKENDS, Cell, Optimizer, Spec
from fathom_study.tasks import parse_spec

__all__ = [
    "AXES", "BACKENDS", "CONTROL_DEPTHS", "Cell", "Compute", "Config", "ConfigError", "Contrast",
    "Optimizer", "Spec", "Study",
    "check_config", "common_depth", "count_parameters", "installed_backends", "load_config",
    "parse_json", "parse_spec", "parse_yaml", "read_yaml",
]  # fmt: skip
