"""Keeps a Ray cluster on the loopback interface; Python imports this at the start of every Ray process.

Each Serve replica opens a gRPC server on every interface of the machine, and Ray has no setting for the
address. The folder of this module is put on PYTHONPATH of the rig's Ray processes only.
"""

from __future__ import annotations

import contextlib
from typing import Any

WILDCARDS = ("[::]:", "0.0.0.0:")


def _keep_on_loopback(server: Any) -> None:  # noqa: ANN401 - grpc.aio.Server, which has no types
    bind = server.add_insecure_port

    def add_insecure_port(self: object, address: str) -> int:
        for wildcard in WILDCARDS:
            if address.startswith(wildcard):
                address = f"127.0.0.1:{address.removeprefix(wildcard)}"
        port: int = bind(self, address)
        return port

    server.add_insecure_port = add_insecure_port


# Without grpc there is no such server: whatever process this is, it must start.
with contextlib.suppress(ImportError):
    # The public grpc.aio.Server is only the interface.
    from grpc.aio import _server  # type: ignore[import-untyped]  # grpcio ships no types

    _keep_on_loopback(_server.Server)
