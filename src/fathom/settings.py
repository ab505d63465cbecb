"""Sections: mappings that people write, checked; and the kinds of value that they hold.

Every file format that a user may edit is made of these. What is wrong in one is refused in a line
that names the file, the key and the fix.
"""

from __future__ import annotations

import difflib
import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    ValidationError,
    model_validator,
)

from fathom.system.errors import UserError


class ConfigError(UserError, ValueError):
    """Settings that cannot be used; the message is one line per problem."""


Entry = TypeVar("Entry")


class Registry(dict[str, Entry]):
    """Alternatives by name, as config.yaml names them.

    Which alternatives there are changes no computation: a new entry makes no run stale (see
    `fathom.runs.provenance`).
    """

    def find(self, kind: str, name: str) -> Entry:
        """The entry of that name. Raises ConfigError that says which names there are."""
        if name not in self:
            raise ConfigError(unknown(kind, name, self))
        return self[name]


def nearest(name: str, known: Iterable[str]) -> str:
    """A suggestion to end a message with, as in "; did you mean 'mhc'?"; empty without one."""
    match = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean '{match[0]}'?" if match else ""


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """The message for a name that stands for nothing."""
    names = list(known)
    return f"unknown {kind} {name!r}{nearest(name, names)} (known: {', '.join(names)})"


# --- kinds of value -----------------------------------------------------------------------------


def _number(value: object) -> object:
    """YAML 1.1 reads 2e-3 as text: accept it as the number it looks like, but refuse a bool."""
    if isinstance(value, bool):
        raise ValueError("must be a number, not true or false")
    return value


def _whole(value: object) -> object:
    """`snakemake --config 'seeds=[0]'` gives ['0']: accept digits as the number they spell.

    Beyond 2⁵³ a number would not survive where a table or a formula makes it a float.
    """
    if isinstance(value, str) and re.fullmatch("-?[0-9]{1,20}", value):
        value = int(value)
    if isinstance(value, int) and abs(value) > 2**53:
        raise ValueError("must not be beyond 2^53")
    return value


def _flag(value: object) -> object:
    """`snakemake --config assume_backends=true` gives 'true'."""
    return value == "true" if value in ("true", "false") else value


def _plain(value: object) -> object:
    """Text of a file that others may have written: no terminal may obey it, no reader be misled."""
    if isinstance(value, str) and not value.isprintable():
        raise ValueError("must not hold control characters, marks of direction or line breaks")
    return value


def one_of(kind: str, names: Iterable[str]) -> AfterValidator:
    """Refuses a name that is not among `names`, with a suggestion."""
    known = sorted(names)

    def check(name: str) -> str:
        if name not in known:
            raise ValueError(unknown(kind, name, known))
        return name

    return AfterValidator(check)


def distinct(values: list[Any]) -> list[Any]:
    """The values of an axis. Raises ValueError if there are none, or one is there twice."""
    if not values:
        raise ValueError("must list at least one value")
    duplicates = sorted({str(v) for v in values if values.count(v) > 1})
    if duplicates:
        raise ValueError(f"lists {', '.join(duplicates)} more than once")
    return values


Whole = Annotated[StrictInt, BeforeValidator(_whole)]
Flag = Annotated[StrictBool, BeforeValidator(_flag)]
Positive = Annotated[Whole, Field(gt=0)]
NonNegative = Annotated[Whole, Field(ge=0)]
Number = Annotated[float, BeforeValidator(_number), Field(allow_inf_nan=False)]
Unique = AfterValidator(distinct)
PLAIN = AfterValidator(_plain)
PlainText = Annotated[str, Field(max_length=500), PLAIN]
"""Text that may be shown as it is: on a terminal, and with its Markdown escaped in a report."""
Label = Annotated[str, Field(pattern=r"^[a-z0-9_]+$")]
"""The name of a variant: a part of paths."""


# --- sections -----------------------------------------------------------------------------------


class Section(BaseModel):
    """A mapping of settings: immutable, and unknown keys are refused by name."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, data: object) -> object:
        if isinstance(data, Mapping):
            for key in data:
                if key not in cls.model_fields:
                    raise ValueError(f"unknown key {key!r}{nearest(str(key), cls.model_fields)}")
        return data


AnySection = TypeVar("AnySection", bound=Section)

ALTERNATIVE = "|"
"""Begins the tags of unions in sections, which say which alternative was tried: no key."""


def checked(
    model: type[AnySection], data: object, source: str, place: Sequence[str] = ()
) -> AnySection:
    """Validate any section. Raises ConfigError, a line for each problem.

    A line names `source` and the key, as in 'config.yaml: studies.depth.steps: …'; `place` is
    where in the source the section stands.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        raise ConfigError("\n".join(_line(p, source, place) for p in problems)) from error


def _line(problem: Mapping[str, Any], source: str, outside: Sequence[str]) -> str:
    inside = [str(part) for part in problem["loc"] if not str(part).startswith(ALTERNATIVE)]
    parts = [*outside, *inside]
    place = ".".join(part if part.isprintable() else ascii(part) for part in parts)
    message = problem["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    if problem["type"] not in ("missing", "value_error"):
        message += f", but is {reprlib.repr(problem['input'])}"
    return f"{source}: {place or 'top level'}: {message}"


def listed(values: Sequence[Any]) -> str:
    """Values separated by commas."""
    return ", ".join(map(str, values))
