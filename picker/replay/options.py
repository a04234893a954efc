"""Values of the command line that have more than one part."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from picker.replay.policies import BUILT_IN, PolicyName
from picker.replay.traces import Scale

if TYPE_CHECKING:
    from collections.abc import Callable

_MOST_POLICY_BYTES = 1 << 20


class _Parsed(click.ParamType[Any]):
    """A value read by a function that raises ValueError."""

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 - click's
        """What ``value`` says."""
        if not isinstance(value, str):
            return value
        try:
            return self._read(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _positive(text: str, what: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0.0 < number < 1e9:  # noqa: PLR2004 - no load, factor or time of use is as large
        raise ValueError(f"{what}: a number above 0 is expected, not {text!r}")
    return number


def whole(least: int, most: int) -> click.ParamType[Any]:
    """A whole number within bounds."""

    def read(text: str) -> int:
        if not text.removeprefix("-").isdecimal() or not least <= int(text) <= most:
            raise ValueError(f"a whole number from {least} to {most} is expected, not {text!r}")
        return int(text)

    return _Parsed("whole", read)


def seconds(most: float) -> click.ParamType[Any]:
    """A time in seconds, 0 included."""

    def read(text: str) -> float:
        number = float(text) if text.replace(".", "", 1).isdecimal() else -1.0
        if not 0.0 <= number <= most:
            raise ValueError(f"seconds from 0 to {most:g} are expected, not {text!r}")
        return number

    return _Parsed("seconds", read)


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(_positive(part, "the list") for part in text.split(","))


def _policy(text: str) -> PolicyName:
    name, equals, file = text.partition("=")
    if not equals:
        if name not in BUILT_IN:
            raise ValueError(
                f"there is no policy {name!r}; known are {', '.join(BUILT_IN)}, or give NAME=FILE"
            )
        return PolicyName(name)
    if not name or name in BUILT_IN:
        raise ValueError(f"{text!r}: give the file's policy a name of its own before '='")
    path = Path(file)
    try:
        with path.open("rb") as document:
            return PolicyName(name, file, document.read(_MOST_POLICY_BYTES + 1))
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}") from None


def _endpoint(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"an endpoint is a number from 0 on, not {text!r}")
    return int(text)


def _slow(text: str) -> tuple[int, float]:
    endpoint, colon, factor = text.partition(":")
    return _endpoint(endpoint), _positive(factor, "the factor") if colon else 4.0


def _failing(text: str) -> tuple[int, float, float]:
    endpoint, at, times = text.partition("@")
    begin, dash, end = times.partition("-")
    if at and not dash:
        raise ValueError(f"{text!r}: times are given as @FROM-UNTIL, in seconds")
    start = _positive(begin, "the time") if begin not in ("", "0") else 0.0
    return _endpoint(endpoint), start, _positive(end, "the time") if end else float("inf")


def _scale(text: str) -> Scale:
    prompt, colon, output = text.partition(":")
    parts = (prompt, output if colon else prompt)
    if not all(part.isdecimal() and 0 < int(part) <= 1024 for part in parts):  # noqa: PLR2004 - longer than any prompt's share
        raise ValueError(f"{text!r}: give a whole number, or PROMPT:OUTPUT")
    return Scale(int(parts[0]), int(parts[1]))


NUMBERS = _Parsed("numbers", _numbers)
POLICY = _Parsed("policy", _policy)
SLOW = _Parsed("slow", _slow)
FAILING = _Parsed("failing", _failing)
SCALE = _Parsed("scale", _scale)
