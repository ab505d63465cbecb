"""Settings: validated mappings that users write, and the types of their values.

Every file that a user may edit is read through this module. An error is one line with the file, the
key and the fix.
"""

from __future__ import annotations

import difflib
import json
import re
import reprlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    model_validator,
)

from fathom.system.errors import UserError
from fathom.system.text import printable


class ConfigError(UserError, ValueError):
    """Error for invalid settings. The message has one line per problem."""


Entry = TypeVar("Entry")


class Registry(dict[str, Entry]):
    """Alternatives by their name in config.yaml.

    An entry is found by its name, so code that uses one depends on the entry's module.
    """

    def find(self, kind: str, name: str) -> Entry:
        """The entry of that name. Raises ConfigError with a list of the known names."""
        if name not in self:
            raise ConfigError(unknown(kind, name, self))
        return self[name]


# --- messages -----------------------------------------------------------------------------------

MAX_LISTED = 40
"""Maximum number of names in one message."""

MAX_PROBLEMS = 20
"""Maximum number of problems in one error."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """End of a message, such as "; did you mean 'mhc'?"; empty if no name is similar."""
    match = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean '{match[0]}'?" if match else ""


def unknown(kind: str, name: object, known: Iterable[object]) -> str:
    """Message for an unknown name or number."""
    names = list(map(str, known))
    similar = did_you_mean(name, names) if isinstance(name, str) else ""
    listed = join_values(names[:MAX_LISTED]) + (", …" if len(names) > MAX_LISTED else "")
    return f"unknown {kind} {short_repr(name)}{similar} (known: {listed})"


def join_values(values: Iterable[object]) -> str:
    """Values separated by commas."""
    return ", ".join(map(str, values))


def join_problems(problems: Iterable[str]) -> str:
    """The first MAX_PROBLEMS problems, one per line, and a note if there are more."""
    lines = list(islice(problems, MAX_PROBLEMS + 1))
    if len(lines) > MAX_PROBLEMS:
        lines[MAX_PROBLEMS] = f"and more: these are the first {MAX_PROBLEMS} problems"
    return "\n".join(lines)


_repr = reprlib.Repr()
_repr.maxlevel, _repr.maxstring, _repr.maxother = 2, 60, 60


def short_repr(value: object) -> str:
    """Short representation of a value."""
    return _repr.repr(value)


# --- kinds of value -----------------------------------------------------------------------------


def _refuse_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("must be a number, not true or false")
    return value


def _refuse_unquoted(value: object) -> object:
    """Refuse values that YAML does not read as text, such as no, 12 and null."""
    if value is None or isinstance(value, bool | int | float):
        raise ValueError(f"must be text, but YAML reads {short_repr(value)}; put it in quotes")
    return value


NULLS = (None, "null")
"""Spellings of null: `snakemake --config depths=null` passes the text."""


def _parse_null(value: object) -> object:
    return None if value in NULLS else value


def _parse_path(name: str, kind: str) -> str:
    """Path of a file or folder, without `~`, `//` or a trailing `/`. It need not exist.

    Snakemake reads braces as wildcards, and programs read a leading hyphen as an option.
    """
    if re.search(r"[{}\n\t]", name) or name.startswith("-"):
        raise ValueError(
            "must not begin with a hyphen or contain braces, tabs or line breaks, but is "
            f"{short_repr(name)}"
        )
    try:
        path = Path(name).expanduser()
        is_other = path.exists() and path.is_dir() != (kind == "folder")
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"{short_repr(name)} cannot be a {kind} ({reason})") from error
    if not path.parts:
        raise ValueError(f"must be the path of a {kind}, not . or empty")
    if is_other:
        raise ValueError(f"{short_repr(name)} exists and is not a {kind}")
    return str(path)


def _refuse_unprintable(value: object) -> object:
    """Refuse untrusted text that could control a terminal or mislead a reader."""
    if isinstance(value, str) and not value.isprintable():
        raise ValueError("must not contain control characters, direction marks or line breaks")
    return value


def one_of(kind: str, names: Iterable[str]) -> AfterValidator:
    """Validator that refuses names outside of `names`, with a suggestion."""
    known = sorted(names)

    def check(name: str) -> str:
        if name not in known:
            raise ValueError(unknown(kind, name, known))
        return name

    return AfterValidator(check)


def distinct(values: list[Any]) -> list[Any]:
    """Values of an axis. Raises ValueError if there are none, or if one is listed twice."""
    if not values:
        raise ValueError("must list at least one value")
    value, count = Counter(values).most_common(1)[0]
    if count > 1:
        raise ValueError(f"lists {value} more than once")
    return values


def either(value: Any, mapping: Any) -> Any:  # noqa: ANN401, types
    """The type of a setting that is either one value or a mapping.

    The form of the input decides which of the two an error describes.
    """
    return Annotated[
        Annotated[value, Tag(VALUE)] | Annotated[mapping, Tag(MAPPING)],
        Discriminator(lambda written: MAPPING if isinstance(written, Mapping) else VALUE),
    ]


VALUE, MAPPING = "|value", "|mapping"

# Pydantic also reads text: '12' as 12, and on, off, yes and no as flags, because
# `snakemake --config` passes text.
# Constraints precede the validator, since only then the JSON schema includes them.
NO_BOOL = BeforeValidator(_refuse_bool)
Whole = Annotated[int, Field(le=2**53), NO_BOOL]
"""An integer that float64 represents exactly."""
Flag = bool
Positive = Annotated[int, Field(gt=0, le=2**53), NO_BOOL]
NonNegative = Annotated[int, Field(ge=0, le=2**53), NO_BOOL]
Number = Annotated[float, Field(allow_inf_nan=False), NO_BOOL]
Unique = AfterValidator(distinct)
PLAIN = AfterValidator(_refuse_unprintable)
PlainText = Annotated[str, Field(max_length=500), PLAIN]
"""Untrusted text that is safe on a terminal and, with its Markdown escaped, in a report."""
TableText = Annotated[str, Field(max_length=500, pattern=r"^([^=+\-@]|$)"), PLAIN]
"""Untrusted text that is safe in a table: a spreadsheet would evaluate a leading =, +, - or @."""
Nullable = BeforeValidator(_parse_null)
QUOTED = BeforeValidator(_refuse_unquoted)
Text = Annotated[str, QUOTED]
OneLine = Annotated[Text, AfterValidator(lambda text: " ".join(text.split()))]
"""Text joined to one line: a line break would end a table row of a report or begin a heading."""
Folder = Annotated[Text, AfterValidator(partial(_parse_path, kind="folder"))]
File = Annotated[Text, AfterValidator(partial(_parse_path, kind="file"))]
Label = Annotated[str, Field(pattern=r"^[a-z0-9_]+$", max_length=64), QUOTED]
"""Name of a variant, which is part of paths."""


# --- mappings -----------------------------------------------------------------------------------


class Settings(BaseModel):
    """Immutable mapping of settings that refuses unknown keys by name."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    connection_settings: ClassVar[frozenset[str]] = frozenset()
    """Settings that do not affect the plain network."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, data: object) -> object:
        if isinstance(data, Mapping):
            known = [field.alias or name for name, field in cls.model_fields.items()]
            for key in data:
                if key not in known:
                    similar = did_you_mean(key, known) if isinstance(key, str) else ""
                    raise ValueError(f"unknown key {short_repr(key)}{similar}")
        return data


AnySettings = TypeVar("AnySettings", bound=Settings)


def validate(
    model: type[AnySettings], data: object, source: str = "", place: Sequence[str] = ()
) -> AnySettings:
    """Data as settings of the given class. Raises ConfigError with one line per problem.

    A line names `source` and the key, as in 'config.yaml: studies.depth.steps: …'; `place` is the
    path of keys to the data in the source.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        raise ConfigError(join_problems(_line(p, source, place) for p in problems)) from error


def _line(problem: Mapping[str, Any], source: str, place: Sequence[str]) -> str:
    keys = [*place, *(key for key in problem["loc"] if key not in (VALUE, MAPPING, "[key]"))]
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] != "value_error":  # our own messages may begin with a key
        message = message[:1].lower() + message[1:]
    if problem["type"] not in ("missing", "value_error"):
        message += f", but is {short_repr(problem['input'])}"
    if problem["type"] == "list_type" and isinstance(problem["input"], str | int | float):
        written = json.dumps([problem["input"]], ensure_ascii=False)
        form = f"'{keys[0]}={written}'" if len(keys) == 1 else f"{keys[-1]}: {written}"
        message += f"; write it as {form[:80]}"
    parts = (source, ".".join(map(str, keys)) or "top level", message)
    return printable(": ".join(part for part in parts if part))


def deep_merge(
    base: Mapping[str, Any], overlay: Mapping[str, Any], *, kinds: bool = False
) -> dict[str, Any]:
    """Merge `overlay` over `base`: mappings key by key, other values as a whole.

    With `kinds`, a name in `base` is short for {kind: name}, and a mapping of another kind replaces
    the whole.
    """
    merged = dict(base)
    for key, value in overlay.items():
        before = merged.get(key)
        if kinds and isinstance(before, str):
            before = {"kind": before}
        can_merge = isinstance(value, Mapping) and isinstance(before, Mapping)
        if can_merge and kinds:
            can_merge = value.get("kind", before.get("kind")) == before.get("kind")
        merged[key] = deep_merge(before, value, kinds=kinds) if can_merge else value
    return merged
