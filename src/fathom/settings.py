"""Sections: mappings that people write, checked; and the kinds of value that they hold.

Every file format that a user may edit is made of these. What is wrong in one is refused in a line
that names the file, the key and the fix.
"""

from __future__ import annotations

import difflib
import os
import re
import reprlib
import stat
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
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
    match = difflib.get_close_matches(name, list(islice(known, 1000)), n=1, cutoff=0.5)
    return f"; did you mean '{match[0]}'?" if match else ""


def unknown(kind: str, name: object, known: Iterable[object]) -> str:
    """The message for a name, or a number, that stands for nothing."""
    names = list(map(str, known))
    near = nearest(name, names) if isinstance(name, str) else ""
    more = ", …" if len(names) > MAX_LISTED else ""
    return f"unknown {kind} {shown(name)}{near} (known: {', '.join(names[:MAX_LISTED])}{more})"


MAX_LISTED = 40
"""So many names a message lists."""

MAX_PROBLEMS = 20
"""So many problems are listed, each in its line."""


def lines_of(problems: Iterable[str]) -> str:
    """The first problems, a line for each, and whether there are more."""
    lines = list(islice(problems, MAX_PROBLEMS + 1))
    if len(lines) > MAX_PROBLEMS:
        lines[MAX_PROBLEMS] = f"and more: these are the first {MAX_PROBLEMS} problems"
    return "\n".join(lines)


class _Repr(reprlib.Repr):
    """Short, whatever the value: Python refuses to write out an integer of 5000 digits."""

    def repr_int(self, x: int, level: int) -> str:
        return super().repr_int(x, level) if x.bit_length() < 1000 else "a number of 300 digits"


_repr = _Repr()
_repr.maxlevel, _repr.maxstring, _repr.maxother = 2, 60, 60


def shown(value: object) -> str:
    """Any value, in a few printable characters."""
    return _repr.repr(value)


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


SPELLINGS = {True: ("on", "yes", "true"), False: ("off", "no", "false")}
"""What YAML 1.1 reads as true and false."""


def _flag(value: object) -> object:
    """`snakemake --config assume_backends=true` gives 'true'."""
    return next((flag for flag, words in SPELLINGS.items() if value in words), value)


def as_written(value: object, words: Collection[str]) -> object:
    """The word that was written where one of `words` was meant and YAML has read it as a flag."""
    if not isinstance(value, bool):
        return value
    return next((word for word in SPELLINGS[value] if word in words), value)


def among(*words: str) -> BeforeValidator:
    """For a Literal of these words, one of which YAML reads as a flag."""
    return BeforeValidator(lambda value: as_written(value, words))


def _nothing(value: object) -> object:
    """`snakemake --config depths=null` gives 'null'."""
    return None if value == "null" else value


def _quoted(value: object) -> object:
    """YAML reads no, 12 and null as something else than text."""
    if value is None or isinstance(value, bool | int | float):
        raise ValueError(f"must be text, but YAML reads {shown(value)}; put it in quotes")
    return value


def _plain(text: str) -> str:
    if re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]", text):
        raise ValueError(f"must hold no control characters, but is {shown(text)}")
    return text


MAX_PATH = 1000
"""The longest name of a folder, in characters: there are more folders in it."""


def _folder(name: str) -> str:
    """The folder as a path without `~`, `//` or a last `/`. Raises ValueError.

    It need not be there yet. Snakemake reads braces as wildcards, and a program a name with a
    hyphen in front as an option.
    """
    if re.search(r"[{}\n\t]", name) or name.startswith("-"):
        raise ValueError(
            "must not begin with a hyphen, nor hold braces, tabs or line breaks, but is "
            f"{shown(name)}"
        )
    try:
        path = Path(name).expanduser()
    except RuntimeError as error:
        raise ValueError(f"{shown(name)}: there is no such home folder") from error
    if not path.parts:
        raise ValueError("must name a folder of its own, as in results")
    if len(str(path)) > MAX_PATH or any(len(os.fsencode(part)) > 255 for part in path.parts):
        raise ValueError(f"is too long for the name of a folder: {shown(name)}")
    try:
        is_folder = stat.S_ISDIR(path.stat().st_mode)
    except FileNotFoundError:
        is_folder = not path.is_symlink()
    except OSError as error:
        raise ValueError(f"{shown(name)} cannot be a folder ({error.strerror})") from error
    if not is_folder:
        raise ValueError(f"{shown(name)} is there already, and is no folder")
    return str(path)


def _showable(value: object) -> object:
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
    duplicates = sorted(str(value) for value, count in Counter(values).items() if count > 1)
    if duplicates:
        more = ", …" if len(duplicates) > MAX_LISTED else ""
        raise ValueError(f"lists {', '.join(duplicates[:MAX_LISTED])}{more} more than once")
    return values


Whole = Annotated[StrictInt, BeforeValidator(_whole)]
Flag = Annotated[StrictBool, BeforeValidator(_flag)]
Positive = Annotated[Whole, Field(gt=0)]
NonNegative = Annotated[Whole, Field(ge=0)]
Number = Annotated[float, BeforeValidator(_number), Field(allow_inf_nan=False)]
Unique = AfterValidator(distinct)
PLAIN = AfterValidator(_showable)
PlainText = Annotated[str, Field(max_length=500), PLAIN]
"""Text that may be shown as it is: on a terminal, and with its Markdown escaped in a report."""
Nullable = BeforeValidator(_nothing)
Text = Annotated[str, BeforeValidator(_quoted), AfterValidator(_plain)]
Folder = Annotated[Text, AfterValidator(_folder)]
Label = Annotated[str, BeforeValidator(_quoted), Field(pattern=r"^[a-z0-9_]+$", max_length=64)]
"""The name of a variant: a part of paths."""


# --- sections -----------------------------------------------------------------------------------


class Section(BaseModel):
    """A mapping of settings: immutable, and unknown keys are refused by name."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, data: object) -> object:
        if isinstance(data, Mapping):
            known = [field.alias or name for name, field in cls.model_fields.items()]
            for key in data:
                if key not in known:
                    near = nearest(key, known) if isinstance(key, str) else ""
                    raise ValueError(f"unknown key {shown(key)}{near}")
        return data


AnySection = TypeVar("AnySection", bound=Section)

MAX_KEY = 100
"""A longer key is cut where a message names it."""

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
        raise ConfigError(lines_of(_line(p, source, place) for p in problems)) from error


def _line(problem: Mapping[str, Any], source: str, outside: Sequence[str]) -> str:
    inside = [str(part) for part in problem["loc"] if not str(part).startswith(ALTERNATIVE)]
    parts = [*outside, *inside]
    plain = (part.isprintable() and len(part) <= MAX_KEY for part in parts)
    place = ".".join(part if ok else shown(part) for part, ok in zip(parts, plain, strict=True))
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] != "value_error":  # ours may begin with a key
        message = message[:1].lower() + message[1:]
    if problem["type"] not in ("missing", "value_error"):
        message += f", but is {shown(problem['input'])}"
    return f"{source}: {place or 'top level'}: {message}"


def listed(values: Sequence[Any]) -> str:
    """Values separated by commas."""
    return ", ".join(map(str, values))
