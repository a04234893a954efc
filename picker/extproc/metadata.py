"""What the gateway tells in the metadata context of its messages.

The names are those of the Endpoint Picker Protocol (Gateway API Inference Extension, proposal 004).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from google.protobuf.struct_pb2 import Value

    from picker.extproc._generated.base_pb2 import Metadata

_SUBSET_NAMESPACE: Final = "envoy.lb.subset_hint"
_SUBSET: Final = "x-gateway-destination-endpoint-subset"
_NAMESPACE: Final = "envoy.lb"
_SERVED: Final = "x-gateway-destination-endpoint-served"


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
