"""Asks a running picker's admin port, for the commands that show what it says."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import click

from picker.commands.errors import refuse
from picker.observe.logs import shown

Json = dict[str, Any]

TIMEOUT = 10.0
SIGN = "Serve-Picker"
"""Header of all that an admin port answers as JSON."""
_NOT_FOUND = 404

admin_option = click.option(
    "--admin",
    default="127.0.0.1:9091",
    metavar="HOST:PORT",
    help="the running picker's admin port [127.0.0.1:9091]",
)
token_option = click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="what PICKER_HTTP_AUTH=token:FILE wants to see",
)


class AdminClient:
    """The JSON of an admin port. What goes wrong ends the process with one line."""

    def __init__(self, admin: str, token_file: Path | None) -> None:
        self._url = admin if "://" in admin else f"http://{admin}"
        if not self._url.startswith(("http://", "https://")):
            refuse(
                f"--admin {shown(admin)!r} is no HTTP address; give HOST:PORT, or a URL with http:// or https://"
            )
        self._headers = {"Accept": "application/json"}
        if token_file is not None:
            try:
                self._headers["Authorization"] = f"Bearer {token_file.read_text('ascii').strip()}"
            except (OSError, ValueError):
                refuse(
                    f"--token-file {str(token_file)!r} cannot be read as a token; give a file with one in it"
                )

    def get(self, path: str) -> Any:  # noqa: ANN401 - whatever JSON there is
        """The answer of a path."""
        return self._ask(path)

    def post(self, path: str, body: Json) -> Any:  # noqa: ANN401
        """The answer to a JSON object."""
        return self._ask(path, json.dumps(body).encode())

    def _ask(self, path: str, data: bytes | None = None) -> Any:  # noqa: ANN401
        try:
            request = urllib.request.Request(self._url + path, data=data, headers=self._headers)  # noqa: S310
            with urllib.request.urlopen(request, timeout=TIMEOUT) as response:  # noqa: S310 - as told
                if response.headers.get(SIGN) is None:
                    refuse(self._strange())
                return json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                if error.code == _NOT_FOUND and error.headers.get(SIGN) is None:
                    refuse(self._strange())
                text = shown(error.read(4096).strip())
            refuse(f"{self._url} says {error.code}: {text or shown(error.reason)}")
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = shown(getattr(error, "reason", error))
            refuse(f"{shown(self._url)} cannot be asked ({reason}); is a picker running at --admin?")

    def _strange(self) -> str:
        return f"{self._url} is not an admin port; that is PICKER_ADMIN_PORT, by default 9091"
