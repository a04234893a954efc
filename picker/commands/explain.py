"""``serve-picker explain``: why the last requests went where they went, or where one would go."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from picker.commands.admin_client import AdminClient, Json, admin_option, token_option
from picker.commands.errors import refuse

_FILE = click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path)
_MARGIN = 2


@click.command("explain", short_help="Say why a running picker chose as it did, or would choose.")
@click.option("--last", type=click.IntRange(1, 1000), help="the last N decisions [10 without a request]")
@click.option("--decision", metavar="ID", help="one of them, whole")
@click.option("--model", help="a made-up request's model")
@click.option("--path", metavar="PATH", help="its path [/v1/completions]")
@click.option("--method", metavar="METHOD", help="its method [POST]")
@click.option("--prompt", help="its prompt")
@click.option("--prompt-file", type=_FILE, help="its prompt, from a file")
@click.option("--header", "headers", multiple=True, metavar="NAME:VALUE", help="one of its headers")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of a table")
@admin_option
@token_option
def command(  # noqa: PLR0913 - one per flag
    *,
    last: int | None,
    decision: str | None,
    model: str | None,
    path: str | None,
    method: str | None,
    prompt: str | None,
    prompt_file: Path | None,
    headers: tuple[str, ...],
    as_json: bool,
    admin: str,
    token_file: Path | None,
) -> int:
    """Ask a running picker about its last decisions, or about a made-up request.

    Nothing is changed by asking.
    """
    if prompt is not None and prompt_file is not None:
        refuse("--prompt and --prompt-file are both the prompt; give one")
    if prompt_file is not None:
        prompt = sys.stdin.read() if str(prompt_file) == "-" else prompt_file.read_text(errors="replace")
    client = AdminClient(admin, token_file)
    made_up = bool(headers) or any(given is not None for given in (model, path, method, prompt))
    if sum((made_up, decision is not None, last is not None)) > 1:
        refuse("a made-up request, --decision and --last are three questions; ask one")
    if made_up:
        whole = client.post("/api/explain", _request(model, path, method, prompt, headers))
        click.echo(json.dumps(whole, indent=2) if as_json else explanation(whole))
    elif decision is not None:
        if not decision.isdecimal():
            refuse(f"--decision {decision!r} is no id; see the first column of serve-picker explain")
        whole = client.get(f"/api/decisions/{decision}")
        click.echo(json.dumps(whole, indent=2) if as_json else explanation(whole))
    else:
        found = client.get(f"/api/decisions?last={last or 10}")
        click.echo(json.dumps(found, indent=2) if as_json else decisions(found))
    return 0


def _request(
    model: str | None, path: str | None, method: str | None, prompt: str | None, headers: tuple[str, ...]
) -> Json:
    told: dict[str, str] = {}
    for header in headers:
        name, separator, value = header.partition(":")
        if not separator or not name.strip():
            refuse(f"--header {header!r} is not NAME:VALUE, for example --header x-session-id:42")
        told[name.strip()] = value.strip()
    request: Json = {"method": method or "POST", "path": path or "/v1/completions", "headers": told}
    if model is not None or prompt is not None:
        # Both forms, so that it is a request for completions as well as for a chat.
        request["body"] = {
            "model": model or "",
            "prompt": prompt or "",
            "messages": [{"role": "user", "content": prompt or ""}],
        }
    return request


def decisions(found: list[Json]) -> str:
    """A table of decisions, newest first."""
    heads = ["id", "time", "request", "model", "tokens", "cached", "endpoint"]
    lines = [
        [
            one["id"],
            datetime.fromtimestamp(one["at"]).astimezone().strftime("%H:%M:%S"),
            printable(f"{one['method']} {one['path']}"),
            printable(one["model"]),
            str(one["prompt_tokens"]),
            f"{one['matched_tokens']:.0f}",
            one["endpoint"] or f"refused: {one['refused']}",
        ]
        for one in found
    ]
    return table(heads, lines) if lines else "no decisions yet"


def explanation(whole: Json) -> str:
    """All that is known of one decision."""
    chosen = whole["endpoint"] or f"refused: {whole['refused']} ({whole['message']})"
    request = f"{printable(whole['method'])} {printable(whole['path'])}"
    model = printable(whole["model"]) or "no model"
    cached = f"{whole['matched_tokens']:.0f} of them expected in the cache"
    parts = [
        f"{request}  {model}  {whole['prompt_tokens']} prompt tokens, {cached}",
        f"chosen: {', '.join([chosen, *whole['fallbacks']])}",
    ]
    for step in whole["dropped"]:
        more = f" and {step['more']} more" if step["more"] else ""
        parts.append(f"{step['by']} left out {', '.join(step['endpoints'])}{more}")
    if whole["candidates"]:
        heads = ["endpoint", "total", *(f"{one['name']} x {one['weight']:g}" for one in whole["scorers"])]
        lines = [
            [one["endpoint"], f"{one['total']:.4f}", *(f"{score:.4f}" for score in one["scores"])]
            for one in whole["candidates"]
        ]
        parts += ["", table(heads, lines)]
    if whole["more"]:
        parts.append(f"and {whole['more']} more")
    if whole["draw"]:
        parts.append(whole["draw"])
    return "\n".join(parts)


def table(heads: list[str], lines: list[list[str]]) -> str:
    """Columns as wide as they need to be."""
    widths = [max(len(line[place]) for line in [heads, *lines]) for place in range(len(heads))]
    return "\n".join(
        (" " * _MARGIN).join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in [heads, *lines]
    )


def printable(text: Any) -> str:  # noqa: ANN401 - whatever the answer holds
    """What a client wrote, without what a terminal would obey."""
    return "".join(letter if letter.isprintable() else "�" for letter in str(text))
