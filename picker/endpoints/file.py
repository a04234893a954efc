"""A watched file of endpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from picker.endpoints.endpoint import Endpoint, EndpointsError
from picker.endpoints.file_format import parse_endpoints
from picker.watched import POLL_INTERVAL, WatchedFile

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path


class FileSource:
    """The members listed in ``PICKER_ENDPOINTS_FILE``."""

    def __init__(
        self, path: Path, *, metrics_target_port: int | None = None, interval: float = POLL_INTERVAL
    ) -> None:
        self._path = path
        self._metrics_port = metrics_target_port
        self._interval = interval

    def sets(self) -> AsyncGenerator[tuple[Endpoint, ...], None]:
        """See :class:`picker.endpoints.endpoint.Source`."""

        def parse(raw: bytes) -> tuple[Endpoint, ...]:
            return parse_endpoints(raw, str(self._path), metrics_target_port=self._metrics_port)

        return WatchedFile(self._path, parse, EndpointsError, interval=self._interval).contents()
