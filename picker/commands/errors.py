"""How a command says no."""

from __future__ import annotations

import sys
from typing import NoReturn

import click

WRONG_CALL = 2
"""Exit code: told something wrong."""


def refuse(message: str) -> NoReturn:
    """End the process with one line that says what to mend."""
    click.echo(f"serve-picker: {message}", err=True)
    sys.exit(WRONG_CALL)
