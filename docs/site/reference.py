"""Write what the documents repeat of the code, or check that it is up to date.

    python docs/site/reference.py            write
    python docs/site/reference.py --check    write nothing; exit 1 and name the pages that differ

In docs/settings.md that is what is in picker/settings.py, in docs/migration-from-llm-d.md the fate of the
flags in picker/llm_d_flags.py.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

DOCS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(DOCS.parent))

from picker.llm_d_flags import ALIASES, IGNORED  # noqa: E402 - found by the line above
from picker.settings import Settings, default, flag, variable  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

SETTINGS = DOCS / "settings.md"
MIGRATION = DOCS / "migration-from-llm-d.md"

GROUPS = {
    "bind": "Ports",
    "endpoints": "The pool",
    "objects_file": "Models and priorities",
    "eds_file": "An Envoy beside the picker",
    "config_file": "Policy and sessions",
    "strict_bodies": "Requests and answers",
    "replicas": "Several pickers, and what they remember",
    "transport": "The ext_proc port",
    "metrics_interval": "Scraping the endpoints",
    "decision_timeout": "Time",
    "max_body": "Memory",
    "log_level": "Logs",
}
"""Headings, by the first setting below each; those that follow it in ``Settings`` belong to the same."""

_HEADS = "| variable, flag | default | meaning | for example |\n|---|---|---|---|\n"

OTHER_FLAGS = {
    "--pool-name, --pool-namespace": "`PICKER_POOL`; the namespace is that of `NAMESPACE`, else `default`",
    "--endpoint-selector, --endpoint-target-ports": "`PICKER_PODS`",
    "--metrics-endpoint-auth": "`PICKER_HTTP_AUTH=kubernetes`; here it is off unless that is set",
}
"""Flags that are not simply another name of a setting."""


def pages() -> dict[Path, str]:
    """Each page as it should be."""
    return {
        SETTINGS: _with(SETTINGS, "settings", "".join(_sections())),
        MIGRATION: _with(MIGRATION, "flags", "".join(_flags())),
    }


def _with(page: Path, marker: str, text: str) -> str:
    """The page, with ``text`` between two comments."""
    begin, end = f"<!-- {marker} -->\n", f"<!-- /{marker} -->"
    before, _, rest = page.read_text().partition(begin)
    return f"{before}{begin}{text}{end}{rest.partition(end)[2]}"


def _sections() -> Iterator[str]:
    for name, field in Settings.model_fields.items():
        if name in GROUPS:
            yield f"\n## {GROUPS[name]}\n\n{_HEADS}"
        description = field.description or ""
        shown = f"`{default(name)}`" if default(name) else _default_in_words(description)
        meaning = re.sub(r" \[.*\]$", "", description)
        example = f"`{(field.examples or [''])[0]}`"
        yield f"| `{variable(name)}` `{flag(name)}` | {shown} | {meaning} | {example} |\n"


def _default_in_words(description: str) -> str:
    """What a description says in brackets at its end."""
    found = re.search(r" \[(.*)\]$", description)
    return found[1] if found else ""


def _flags() -> Iterator[str]:
    yield "| flag of the llm-d picker | here |\n|---|---|\n"
    for names, meaning in OTHER_FLAGS.items():
        yield f"| {', '.join(f'`{name}`' for name in names.split(', '))} | {meaning} |\n"
    for name, setting in ALIASES.items():
        yield f"| `--{name}` | `{variable(setting)}` |\n"
    for name, why in IGNORED.items():
        shown = f"-{name}" if len(name) == 1 else f"--{name}"
        if shown not in OTHER_FLAGS:
            yield f"| `{shown}` | without meaning: {why} |\n"


def main() -> int:
    """Write or check; returns the exit code."""
    differing = {page: text for page, text in pages().items() if page.read_text() != text}
    if sys.argv[1:] != ["--check"]:
        for page, text in differing.items():
            page.write_text(text)
        return 0
    for page in differing:
        print(f"{page.name} is not what the code says: run python docs/site/reference.py", file=sys.stderr)  # noqa: T201
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
