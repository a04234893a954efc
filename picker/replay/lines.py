"""The lines of a trace's file as rows, with errors that say where."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, Any, TypeVar

import orjson
from pydantic import BaseModel, TypeAdapter, ValidationError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MOST_ROWS = 2_000_000
"""Lines of a file that are read; more would not fit a small machine's memory."""

_Row = TypeVar("_Row", bound=BaseModel)


class TraceError(Exception):
    """A trace cannot be read; one line that names the file, the line and what is wrong."""


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines that are not blank. Like all of these, raises TraceError."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line.rstrip("\n")
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise TraceError(f"{path}: is not text in UTF-8") from None


def json_value(path: Path, number: int, line: str) -> Any:  # noqa: ANN401 - whatever the line holds
    """What a line holds as JSON."""
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise TraceError(f"{path}:{number}: is not JSON: {error}") from None


def json_rows(path: Path, row_type: type[_Row]) -> Iterator[_Row]:
    """One JSON object a line."""
    read = TypeAdapter(row_type).validate_json
    for number, line in counted(path, lines(path)):
        try:
            yield read(line)
        except ValidationError as error:
            raise TraceError(f"{path}:{number}: {_first(error)}") from None


def csv_rows(path: Path, row_type: type[_Row]) -> Iterator[_Row]:
    """Cells by the names of the first line."""
    rest = lines(path)
    _, header = next(rest, (1, ""))
    names = next(csv.reader([header]))
    missing = [name for name in row_type.model_fields if name not in names]
    if missing:
        raise TraceError(f"{path}:1: has no column {missing[0]}")
    for number, line in counted(path, rest):
        try:
            cells = next(csv.reader([line]))
            yield row_type.model_validate(dict(zip(names, cells, strict=False)))
        except csv.Error as error:
            raise TraceError(f"{path}:{number}: {error}") from None
        except ValidationError as error:
            raise TraceError(f"{path}:{number}: {_first(error)}") from None


def counted(path: Path, numbered_lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """The same, up to a bound."""
    for row, numbered in enumerate(numbered_lines):
        if row == MOST_ROWS:
            raise TraceError(f"{path}:{numbered[0]}: more than {MOST_ROWS:,} requests; split the file")
        yield numbered


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    place = ".".join(map(str, first["loc"]))
    return f"{place}: {first['msg']}" if place else first["msg"]
