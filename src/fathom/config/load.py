"""Reading a config: YAML files laid over each other, then checked."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from fathom.config.study import BACKENDS, Config
from fathom.settings import ConfigError, checked, shown

MAX_BYTES = 5_000_000
"""The largest file that is read as YAML."""

MAX_VALUES = 50_000
"""The most values that a text may hold, where an alias counts as what it stands for."""

MAX_LEVELS = 30
"""How deep they may be nested, likewise."""


def load_config(files: Sequence[str | Path], overrides: Mapping[str, Any] | None = None) -> Config:
    """Read YAML files, later ones over earlier ones, then `overrides`, as Snakemake does."""
    merged: dict[str, Any] = {}
    for file in files:
        merge(merged, read_yaml(file))
    merge(merged, overrides or {})
    return check_config(merged, " + ".join(str(f) for f in files))


def read_yaml(file: str | Path) -> dict[str, Any]:
    """A YAML mapping. Raises ConfigError with the file, the line and the problem."""
    try:
        with Path(file).open("rb") as stream:  # which may be a device without end
            content = stream.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ConfigError(f"{file}: is longer than {MAX_BYTES} bytes")
        data = parse_yaml(content.decode("utf-8"), f"{file}:")
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: malformed YAML ({error})") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{file}: must be a mapping with keys such as 'studies'")
    return data


def parse_yaml(text: str, source: str) -> Any:  # noqa: ANN401, whatever it says
    """The data that a YAML text stands for. Raises ConfigError, a line that begins with `source`.

    `source` has its colon; the line of the text follows it.
    """
    try:
        return yaml.load(text, Loader=_Data)  # noqa: S506, a SafeLoader
    # PyYAML lets the last two through: an escape such as \UFFFFFFFF, a version of 5000 digits.
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark else ""
        problem = " ".join((getattr(error, "problem", None) or str(error)).split())
        raise ConfigError(f"{source}{where} malformed YAML ({_cut(problem)})") from error


def _cut(problem: str) -> str:
    return problem if len(problem) <= 200 else f"{problem[:200]}…"


def _problem(node: yaml.Node, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


class _Data(yaml.SafeLoader):
    """Plain data: mappings, lists, texts, numbers, flags and nothing; a date is a text.

    Refused, at their line: a key that is there twice, an alias of what it stands in, numbers that
    are not written in decimal digits, and more values or levels than a config can have.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.count = self.level = 0
        self.extents: dict[yaml.Node, tuple[int, int]] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node:  # noqa: ANN401
        """The next node, or the one that the next alias stands for."""
        mark = self.peek_event().start_mark
        self.count += 1
        self.level += 1
        if self.count > MAX_VALUES or self.level > MAX_LEVELS:
            raise yaml.MarkedYAMLError(problem=_TOO_MUCH, problem_mark=mark)
        is_alias = self.check_event(yaml.AliasEvent)
        node = super().compose_node(parent, index)
        self.level -= 1
        if not is_alias:
            self.extents[node] = self._extent(node)
        elif node not in self.extents:
            raise yaml.MarkedYAMLError(problem="an alias of what it stands in", problem_mark=mark)
        return node

    def _extent(self, node: yaml.Node) -> tuple[int, int]:
        """(values, levels) of a node, aliases counted as what they stand for."""
        if isinstance(node, yaml.MappingNode):
            self._refuse_duplicates(node)
        children = [self.extents[child] for child in _children(node)]
        values = 1 + sum(values for values, _ in children)
        levels = 1 + max((levels for _, levels in children), default=0)
        if values > MAX_VALUES or levels > MAX_LEVELS:
            raise _problem(node, _TOO_MUCH)
        return values, levels

    def _refuse_duplicates(self, node: yaml.MappingNode) -> None:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise _problem(key, f"the key {shown(key.value)} is there twice")
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else key)


_TOO_MUCH = (
    f"more than {MAX_VALUES} values or {MAX_LEVELS} levels; an alias counts as what it stands for"
)


def _children(node: yaml.Node) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from (key, value)
    elif isinstance(node, yaml.SequenceNode):
        yield from node.value


def _whole_number(loader: _Data, node: yaml.ScalarNode) -> int:
    """YAML 1.1 would read 010 as 8 and 1:30 as 90."""
    text = loader.construct_scalar(node)
    if not re.fullmatch(r"[-+]?(0|[1-9][0-9_]{0,30})", text):
        raise _problem(
            node, f"{shown(text)} is no number in decimal digits; put it in quotes if it is text"
        )
    return int(text.replace("_", ""))


def _fraction(loader: _Data, node: yaml.ScalarNode) -> float:
    text = loader.construct_scalar(node)
    try:
        return float(re.sub(r"^([-+]?)\.(inf|nan)$", r"\1\2", text.replace("_", "").lower()))
    except ValueError as error:
        raise _problem(node, f"{shown(text)} is no number in decimal digits") from error


def _truth(loader: _Data, node: yaml.ScalarNode) -> bool:
    text = loader.construct_scalar(node)
    if text.lower() not in loader.bool_values:
        raise _problem(node, f"{shown(text)} is neither true nor false")
    return loader.bool_values[text.lower()]


for tag, constructor in {
    "int": _whole_number,
    "float": _fraction,
    "bool": _truth,
    "timestamp": yaml.SafeLoader.construct_yaml_str,
}.items():
    _Data.add_constructor(f"tag:yaml.org,2002:{tag}", constructor)


def merge(base: dict[str, Any], overlay: Mapping[str, Any]) -> None:
    """Lay `overlay` over `base` in place: mappings key by key, anything else whole."""
    for key, value in overlay.items():
        if isinstance(value, Mapping):
            if not isinstance(base.get(key), dict):
                base[key] = {}
            merge(base[key], value)
        else:
            base[key] = value


def check_config(data: Mapping[str, Any], source: str = "config") -> Config:
    """Validate a merged config. Raises ConfigError, one line per problem, naming `source`."""
    config = checked(Config, data, source)
    config.check(source)
    return config


def installed_backends() -> tuple[str, ...]:
    """The backends whose framework is here, found without importing any."""
    return tuple(name for name in BACKENDS if _is_installed(name))


def _is_installed(framework: str) -> bool:
    """Whether a distribution brings the module: a folder that one has left behind is not enough."""
    module = importlib.util.find_spec(framework)
    if module is None:
        return False
    try:
        importlib.metadata.distribution(framework)
    except importlib.metadata.PackageNotFoundError:
        # It may be that of another name, as for a build of one's own. But a folder without a file
        # of its own can be shared: mlx-cpu has files in that of mlx, which it does not bring.
        return module.origin is not None and (
            framework in importlib.metadata.packages_distributions()
        )
    return True
