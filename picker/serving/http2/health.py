"""The health service on our own transport."""

from __future__ import annotations

from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2  # type: ignore[import-untyped]  # ships no types

from picker.serving.health import all_statuses, known, status_of
from picker.serving.http2.heads import Status

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from picker.serving.contract import Handler, Stream
    from picker.serving.health import Health

    class HealthStream(Stream, Protocol):
        """A stream that may also end with any status."""

        def reset(self, status: Status, reason: str) -> None:
            """Close with this status at once."""

        def when_over(self, callback: Callable[[], None]) -> None:
            """Have ``callback`` called at the end of the stream."""


class HealthCalls:
    """Answers the three methods, and tells watchers of changes."""

    def __init__(self, health: Health) -> None:
        self._health = health
        self._watches: set[_Watch] = set()
        self._closed = False
        health.listen(self._tell)
        service = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
        self.methods: dict[str, Callable[[HealthStream], Handler]] = {
            f"/{service}/Check": lambda stream: _Call(stream, self._check),
            f"/{service}/List": lambda stream: _Call(stream, self._list),
            f"/{service}/Watch": lambda stream: _Watch(stream, self._watches, self._watch),
        }

    def close(self) -> None:
        """End all watches, now and from now on."""
        self._closed = True
        self._tell()

    def _check(self, stream: HealthStream, message: bytes) -> None:
        name = health_pb2.HealthCheckRequest.FromString(message).service
        if not known(name):
            stream.reset(Status.NOT_FOUND, "unknown service")
            return
        answer = health_pb2.HealthCheckResponse(status=status_of(self._health, name))
        stream.send([answer.SerializeToString()])
        stream.finish()

    def _list(self, stream: HealthStream, message: bytes) -> None:
        health_pb2.HealthListRequest.FromString(message)
        stream.send([all_statuses(self._health).SerializeToString()])
        stream.finish()

    def _watch(self, watch: _Watch) -> None:
        if self._closed:
            watch.stream.reset(Status.UNAVAILABLE, "the server is stopping")
            return
        status = status_of(self._health, watch.name)
        if status != watch.sent:
            watch.sent = status
            watch.stream.send([health_pb2.HealthCheckResponse(status=status).SerializeToString()])

    def _tell(self) -> None:
        for watch in tuple(self._watches):
            self._watch(watch)


class _Call:
    """A call with one request."""

    carries_body = True  # whoever asks waits for an answer, so it is not closed OK without one

    def __init__(self, stream: HealthStream, answer: Callable[[HealthStream, bytes], None]) -> None:
        self._stream = stream
        self._answer = answer

    def received(self, message: bytes) -> None:
        """Answer."""
        try:
            self._answer(self._stream, message)
        except DecodeError:
            self._stream.abort("the request cannot be read")

    def closed(self, *, clean: bool) -> None:
        """Nothing to give up; a client that half-closed without a request gets no answer to it."""
        if clean:
            self._stream.reset(Status.INTERNAL, "there was no request")


class _Watch:
    """A call that gets every change of one name's status until its client leaves."""

    carries_body = True  # ended by ``HealthCalls.close``

    def __init__(self, stream: HealthStream, watches: set[_Watch], tell: Callable[[_Watch], None]) -> None:
        self.stream = stream
        self.name = ""
        self.sent: int | None = None
        self._watches = watches
        self._tell = tell

    def received(self, message: bytes) -> None:
        """Begin to watch; a second request is ignored."""
        if self in self._watches:
            return
        try:
            self.name = health_pb2.HealthCheckRequest.FromString(message).service
        except DecodeError:
            self.stream.abort("the request cannot be read")
            return
        self._watches.add(self)
        self.stream.when_over(lambda: self._watches.discard(self))
        self._tell(self)

    def closed(self, *, clean: bool) -> None:
        """Nothing: a client half-closes at once, and whether it left shows by the stream's end."""
