"""Which release this is."""

from __future__ import annotations

from importlib import metadata


def own_version() -> str:
    """The version that was installed."""
    try:
        return metadata.version("serve-picker")
    except metadata.PackageNotFoundError:  # a checkout that was never installed
        return "(not installed)"
