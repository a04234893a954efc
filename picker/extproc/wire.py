"""Protobuf's wire format, as far as messages are read and written by hand."""

from __future__ import annotations

from typing import Final

_LONGEST_VARINT: Final = 5
"""Bytes of a length; a message of 2 GiB is beyond protobuf."""


def length_at(message: bytes, position: int) -> tuple[int, int]:
    """The length at ``position``: where what it counts stops and starts. Stop is -1 if it is cut off."""
    length = shift = 0
    for at in range(position, min(position + _LONGEST_VARINT, len(message))):
        byte = message[at]
        length |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 - a varint's last byte
            stop = at + 1 + length
            return (stop if stop <= len(message) else -1), at + 1
        shift += 7
    return -1, position


def varint(number: int) -> bytes:
    """A number that is not negative."""
    encoded = bytearray()
    while number > 0x7F:  # noqa: PLR2004 - seven bits a byte
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def enclosed(beginning: bytes, following: int, *tags: int) -> bytes:
    """``beginning`` inside of fields, from the inside out; ``following`` bytes are still to come in each."""
    inner = len(beginning) + following
    for tag in tags:
        header = bytes((tag,)) + varint(inner)
        beginning = header + beginning
        inner += len(header)
    return beginning
