"""``PICKER_OBJECTS_FILE``: the objects for use without Kubernetes, watched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from picker.objects.manifest import ObjectsError, parse_objects
from picker.watched import POLL_INTERVAL, WatchedFile

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from picker.objects.rules import ObjectSet


def follow_objects(path: Path, *, interval: float = POLL_INTERVAL) -> AsyncGenerator[ObjectSet, None]:
    """Give all objects of the file at first and after every change.

    While the file cannot be used the last good set stays in force, and each mistake is logged once.
    Raises ObjectsError instead of the first set.
    """

    def parse(raw: bytes) -> ObjectSet:
        return parse_objects(raw, str(path))

    return WatchedFile(path, parse, ObjectsError, interval=interval).contents()
