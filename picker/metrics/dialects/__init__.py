"""The names that each kind of server uses in its page, and how to tell the kinds apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from picker.metrics.dialects.haproxy import HAPROXY
from picker.metrics.dialects.ray_serve import RAY_SERVE
from picker.metrics.dialects.vllm import VLLM

if TYPE_CHECKING:
    from picker.metrics.dialects.dialect import Dialect

DIALECTS: dict[str, Dialect] = {dialect.name: dialect for dialect in (RAY_SERVE, HAPROXY, VLLM)}
"""Every dialect by the name it is configured by, in the order of detection."""


def detect(page: bytes) -> Dialect | None:
    """The dialect a page is written in, or None if nobody here can read it."""
    return next((dialect for dialect in DIALECTS.values() if dialect.matches(page)), None)
