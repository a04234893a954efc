"""Write docs/settings.md from picker/settings.py, or check that it is up to date.

    python docs/site/settings.py            write
    python docs/site/settings.py --check    write nothing; exit 1 if the page differs
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

DOCS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(DOCS.parent))

from picker.settings import MEMBERSHIP, Settings, default, flag, variable  # noqa: E402 - found by the line above

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = DOCS / "settings.md"

HEAD = f"""\
# Settings

<!-- Written by docs/site/settings.py from picker/settings.py. Do not edit. -->

```sh
PICKER_ENDPOINTS=10.0.0.1:8000,10.0.0.2:8000 serve-picker serve
serve-picker serve --endpoints 10.0.0.1:8000,10.0.0.2:8000
```

Both say the same. Every setting is an environment variable and a flag of the same name; the flag wins. `serve-picker
gateway` has flags for the usual ones and takes all others from the environment.

* An empty variable counts as not set.
* Durations are written `150ms`, `5s`, `2m` or `1m30s`, sizes `64MiB`, switches `true` or `false`.
* A value that cannot be used ends the start with one line that names the setting, the value and a right one, and with
  exit code 2.
* A variable that begins with `PICKER_` and means nothing is named in the log (`unknown variable`), with the nearest
  one that does.
* Exactly one of the {len(MEMBERSHIP)} settings of *the pool* is needed. `PICKER_RAY_SERVICE` or `PICKER_RAY_HEAD` may come
  with `PICKER_POOL`, `PICKER_SERVICE` or `PICKER_PODS`: then they add what they know of its members, and no members.
* The files that are *watched* are read again within a second or so after they change. One that cannot be used is told in the
  log, and its last good content stays.
"""

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

TAIL = """
## Other variables

| variable | meaning |
|---|---|
| `PICKER_ADMIN` | where `serve-picker explain` and `serve-picker top` ask: the admin port of a running picker, `127.0.0.1:9091` by default |
| `NAMESPACE` | the namespace of `--pool-name` and `--endpoint-selector`, [flags of the llm-d picker](migration-from-llm-d.md) |
| `OTEL_*` | the standard variables of OpenTelemetry; [traces](operations.md#traces) are off unless they ask for them |
"""


def page() -> str:
    """The whole page."""
    return HEAD + "".join(_sections()) + TAIL


def _sections() -> Iterator[str]:
    for name, field in Settings.model_fields.items():
        if name in GROUPS:
            yield f"\n## {GROUPS[name]}\n\n| variable, flag | default | meaning | for example |\n|---|---|---|---|\n"
        shown = f"`{default(name)}`" if default(name) else _default_in_words(field.description or "")
        meaning = re.sub(r" \[.*\]$", "", field.description or "")
        example = f"`{(field.examples or [''])[0]}`"
        yield f"| `{variable(name)}` `{flag(name)}` | {shown} | {meaning} | {example} |\n"


def _default_in_words(description: str) -> str:
    """What a description says in brackets at its end."""
    found = re.search(r" \[(.*)\]$", description)
    return found[1] if found else ""


def main() -> int:
    """Write or check; returns the exit code."""
    wanted = page()
    if sys.argv[1:] != ["--check"]:
        PAGE.write_text(wanted)
        return 0
    if PAGE.exists() and PAGE.read_text() == wanted:
        return 0
    print(f"{PAGE.name} is not what picker/settings.py says: run python docs/site/settings.py", file=sys.stderr)  # noqa: T201
    return 1


if __name__ == "__main__":
    sys.exit(main())
