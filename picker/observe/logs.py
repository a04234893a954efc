"""One line per event on standard error: readable on a terminal, JSON otherwise.

Convention for every room::

    log = logging.getLogger(__name__)
    log.warning("metrics page unreadable", extra={"fields": {"endpoint": address, "error": str(error)}})

* The message is a constant; what varies goes into ``fields``. Repeats of one message are counted
  and left out (:class:`RepeatFilter`), which works only if it is the same text each time. Repeats
  about different endpoints (the field ``endpoint``), or for different reasons (``reason``, which is one of
  our own few), are counted apart.
* What is logged for each request at debug carries ``extra={"sampled": True}`` beside its fields: a few of
  them a second are written.
* Fields need no escaping by the caller: the formatters pass each value through :func:`shown`, so
  nothing a client or an endpoint sent can forge a line, colour a terminal or fill a disk. Such a
  value inside a *message* or an error's text is to be wrapped in :func:`shown` by whoever builds it.
* ``log.exception`` is for errors of our own; the traceback becomes one field on the same line.

The standard library's logging is used and not structlog: the libraries below (grpc, asyncio, aiohttp)
log there in any case, and two formatters are all that is needed on top.
"""

from __future__ import annotations

import logging
import sys
import time
import traceback
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Literal

import orjson

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TextIO

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["auto", "text", "json"]

SAMPLES = 20
"""Of the same sampled record, those that are written each second."""
_VALUE_LIMIT = 256
_MESSAGE_LIMIT = 2048
_TRACEBACK_FRAMES = 12
_FIELDS_LIMIT = 32
_COLOURS = {"debug": "2", "warning": "33", "error": "31", "critical": "31"}


def shown(value: object, limit: int = _VALUE_LIMIT) -> str:
    """``value`` as printable text on one line, at most about ``limit`` characters.

    Control, format, surrogate and separator characters (newlines, terminal escapes, direction
    marks) become Python escapes; bytes are read as UTF-8. What is cut off is counted.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        head, length = bytes(value[:limit]).decode("utf-8", "backslashreplace"), len(value)
    else:
        text = value if isinstance(value, str) else str(value)
        head, length = text[:limit], len(text)
    if not head.isprintable():
        head = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in head)
    return head if length <= limit else f"{head}…(+{length - limit})"


class RepeatFilter(logging.Filter):
    """Lets through the first few of the same warning in each period and counts the rest.

    The next one let through carries the count in the field ``suppressed``. Records below WARNING
    pass, but for those that are ``sampled``: of these SAMPLES are let through each second. The memory
    is bounded: the message not heard for longest is forgotten.
    """

    def __init__(
        self,
        burst: int = 5,
        period: float = 10.0,
        *,
        memory: int = 1024,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._burst = burst
        self._period = period
        self._memory = memory
        self._clock = clock
        self._heard: OrderedDict[tuple[object, ...], _Heard] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is to be written."""
        fields = _fields(record)
        if record.levelno >= logging.WARNING:
            burst, period = self._burst, self._period
            about = str(fields.get("endpoint", "") or fields.get("reason", ""))
        elif getattr(record, "sampled", False):
            burst, period, about = SAMPLES, 1.0, ""
        else:
            return True
        key = (record.name, record.levelno, record.msg, about)
        now = self._clock()
        heard = self._heard.get(key)
        if heard is None:
            heard = self._heard[key] = _Heard(now)
            if len(self._heard) > self._memory:
                self._heard.popitem(last=False)
        self._heard.move_to_end(key)
        if now - heard.since >= period:
            if heard.suppressed:
                record.fields = {**fields, "suppressed": heard.suppressed}
            heard.since, heard.count, heard.suppressed = now, 0, 0
        if heard.count >= burst:
            heard.suppressed += 1
            return False
        heard.count += 1
        return True


class _Heard:
    __slots__ = ("count", "since", "suppressed")

    def __init__(self, since: float) -> None:
        self.since = since
        self.count = 0
        self.suppressed = 0


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    fields = getattr(record, "fields", None)
    return fields if isinstance(fields, dict) else {}


def _bounded(record: logging.LogRecord) -> dict[str, Any]:
    """The record's fields with numbers as they are and everything else shown; the error last."""
    result: dict[str, Any] = {}
    for name, value in list(_fields(record).items())[:_FIELDS_LIMIT]:
        plain = value is None or isinstance(value, bool | float) or _is_small_int(value)
        result[shown(name, 64)] = value if plain else shown(value)
    if record.exc_info and record.exc_info[1] is not None:
        result["exception"] = _one_line(record.exc_info[1])
    return result


def _is_small_int(value: object) -> bool:
    return isinstance(value, int) and -(2**53) < value < 2**53


def _one_line(error: BaseException) -> str:
    """The error and the innermost frames it came through, innermost first, on one line."""
    frames = traceback.extract_tb(error.__traceback__)[-_TRACEBACK_FRAMES:]
    places = " < ".join(f"{frame.filename}:{frame.lineno} {frame.name}" for frame in reversed(frames))
    return shown(f"{type(error).__name__}: {shown(error)} at {places}", _MESSAGE_LIMIT)


def _message(record: logging.LogRecord) -> str:
    try:
        return shown(record.getMessage(), _MESSAGE_LIMIT)
    except (TypeError, ValueError):  # a library's message that does not fit its arguments
        return shown(record.msg, _MESSAGE_LIMIT)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: ``time`` (UTC), ``level``, ``logger``, ``message``, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line of JSON."""
        own = {
            "time": _utc(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
        }
        # The second `own` keeps a field from replacing time, level, logger or message.
        return orjson.dumps({**own, **_bounded(record), **own}).decode()


class TextFormatter(logging.Formatter):
    """``12:30:01.250 warning picker.metrics  page unreadable  endpoint=10.0.0.1:8000 error="…"``."""

    def __init__(self, *, colour: bool) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line of text."""
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = record.levelname.lower()
        code = _COLOURS.get(level) if self._colour else None
        painted = f"\x1b[{code}m{level:<7}\x1b[0m" if code else f"{level:<7}"
        pairs = "".join(f" {name}={_quoted(value)}" for name, value in _bounded(record).items())
        head = f"{clock}.{int(record.msecs):03d} {painted} {record.name}  {_message(record)}"
        return f"{head} {pairs}" if pairs else head


def _quoted(value: object) -> str:
    text = str(value)
    if text and not any(c in ' "=' for c in text):
        return text
    return '"' + text.replace('"', '\\"') + '"'


def _utc(seconds: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1000):03d}Z"


class _Handler(logging.StreamHandler["TextIO"]):
    """The one handler :func:`configure` puts in and, called again, takes out."""


def configure(level: LogLevel = "info", log_format: LogFormat = "auto", stream: TextIO | None = None) -> None:
    """Send all logging of the process to ``stream`` (standard error). May be called again.

    ``auto`` is ``text`` where the stream is a terminal, else ``json``.
    """
    stream = stream or sys.stderr
    terminal = stream.isatty()
    if log_format == "auto":
        log_format = "text" if terminal else "json"
    handler = _Handler(stream)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter(colour=terminal))
    handler.addFilter(RepeatFilter())
    root = logging.getLogger()
    for old in [handler for handler in root.handlers if isinstance(handler, _Handler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    # Their debug lines tell every poll of a selector; they never help to understand the picker.
    logging.getLogger("asyncio").setLevel(max(root.level, logging.INFO))
    logging.captureWarnings(capture=True)
    # A broken pipe behind standard error must not answer each line with a traceback.
    logging.raiseExceptions = False
