"""Which release this is, and in which form."""

from __future__ import annotations

from importlib import metadata, util


def own_version() -> str:
    """The version that was installed, and whether what requests pass is compiled (``setup.py``)."""
    try:
        version = metadata.version("serve-picker")
    except metadata.PackageNotFoundError:  # a checkout that was never installed
        version = "(not installed)"
    hot = util.find_spec("picker.streams")
    compiled = hot is not None and not str(hot.origin).endswith(".py")
    return f"{version} (compiled)" if compiled else version
