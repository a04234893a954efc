"""What a session is told when it is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from picker.inference.question import Question
from picker.inference.surfaces import EVERY_SURFACE, Surfaces


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """The bounds of one stream, in bytes, and what it does beside picking.

    ``max_body``: of a request's body that is held; beyond it the decision is made on what was read.
    ``strict_bodies``: refuse (400) what cannot be read on the path of an inference API.
    ``chunk_limit``: of one body message that is sent. Larger chunks are split; below gRPC's default
    receive limit of 4 MiB, and no smaller than what Envoy sends by default, so that nothing is split.
    ``surfaces``: the APIs whose requests are read, and what is made of other paths.
    ``read_usage``: read from answers what they used, where their bodies are seen.
    ``echo_served``: tell the client who served it, as conformance tests of gateways want it.
    """

    max_body: int = 64 << 20
    strict_bodies: bool = False
    chunk_limit: int = 1 << 20
    surfaces: Surfaces = EVERY_SURFACE
    read_usage: bool = False
    echo_served: bool = False


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a session calls, where it is given; neither may raise.

    ``resolve`` is called once per request, when all of it is known that will be and before it is decided
    about. It may set ``Question.model``, the name the endpoint shall be asked for, and
    ``Question.priority``.
    ``new_request_id`` makes the ``x-request-id`` of a request that comes without.
    """

    resolve: Callable[[Question], None] | None = None
    new_request_id: Callable[[], str] | None = None
