"""What the gateway tells beside the phase of a message: metadata, and its modes.

The names are those of the Endpoint Picker Protocol (Gateway API Inference Extension, proposal 004).
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from picker.extproc.messages import parse

if TYPE_CHECKING:
    from google.protobuf.struct_pb2 import Value

    from picker.extproc._generated.base_pb2 import Metadata
    from picker.extproc._generated.external_processor_pb2 import ProcessingRequest

_SUBSET_NAMESPACE: Final = "envoy.lb.subset_hint"
_SUBSET: Final = "x-gateway-destination-endpoint-subset"
_NAMESPACE: Final = "envoy.lb"
_SERVED: Final = "x-gateway-destination-endpoint-served"


_LONGEST_KEPT: Final = 2_048
"""Bytes of the longest fields whose meaning is remembered."""


class Beside(NamedTuple):
    """What stood beside a phase.

    ``subset`` and ``served`` as :func:`subset_hint` and :func:`served_endpoint` say; ``balanced`` as
    :func:`is_balanced`. ``modes``, for bodies of requests and of responses, come with the first message.
    ``phase`` is what it stood beside, if that was read too.
    """

    subset: tuple[str, ...] | None
    served: str
    balanced: bool
    modes: tuple[int, int] | None
    phase: str | None


def read_beside(fields: bytes) -> Beside | None:
    """Read serialized fields of a ProcessingRequest. None: they cannot be decoded.

    A gateway writes the same few ones over and over.
    """
    return _remembered(fields) if len(fields) <= _LONGEST_KEPT else _read(fields)


def _read(fields: bytes) -> Beside | None:
    request = parse(fields)
    return None if request is None else beside(request)


_remembered = lru_cache(maxsize=512)(_read)


def beside(request: ProcessingRequest) -> Beside:
    """What a parsed message says beside its phase."""
    modes = None
    phase = request.WhichOneof("request")
    if request.HasField("protocol_config"):
        config = request.protocol_config
        modes = int(config.request_body_mode), int(config.response_body_mode)
    if not request.HasField("metadata_context"):
        return Beside(None, "", False, modes, phase)
    metadata = request.metadata_context
    return Beside(subset_hint(metadata), served_endpoint(metadata), is_balanced(metadata), modes, phase)


def subset_hint(metadata: Metadata) -> tuple[str, ...] | None:
    """The endpoints the gateway allows. None: it does not say; empty: it allows none.

    Gateways write a list, a text with commas, or a list of such texts.
    """
    value = _value(metadata, _SUBSET_NAMESPACE, _SUBSET)
    if value is None:
        return None
    if value.HasField("string_value"):
        texts = [value.string_value]
    elif value.HasField("list_value"):
        texts = [item.string_value for item in value.list_value.values]
    else:
        return None
    return tuple(entry for text in texts for part in text.split(",") if (entry := part.strip()))


def served_endpoint(metadata: Metadata) -> str:
    """The ``ip:port`` that the gateway says has served the request, or nothing."""
    value = _value(metadata, _NAMESPACE, _SERVED)
    return value.string_value.strip() if value is not None else ""


def is_balanced(metadata: Metadata) -> bool:
    """Whether the gateway shows what its load balancer was told, so that it could say who served."""
    return _NAMESPACE in metadata.filter_metadata


def _value(metadata: Metadata, namespace: str, key: str) -> Value | None:
    # Reading a missing key of a protobuf map would add it.
    if namespace not in metadata.filter_metadata:
        return None
    return metadata.filter_metadata[namespace].fields.get(key)
