"""Results of cells, each in a file of its own, so that a long comparison can go on where it was ended.

A file's name is a digest of the case, the seed and the code that the result hangs on: with the policies' code
changed, only their cells are run again.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from bench.routing.matrix import BLIND
from picker.replay.result import Result

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from picker.replay.cases import Case
    from picker.replay.pool import Pool

_ROOT = Path(__file__).parents[2]
_STAGE = ("picker/replay",)
_DECIDES = ("picker/inference", "picker/policy_file.py", "scorer")
_OURS_ALONE = ("picker/routing", "scorer/scorers.py", "scorer/affinity.py")
"""Of what decides, that which no policy of others uses but for a constant: it changes most."""
_BATCH = 16
"""Runs between two times that results are written down."""


class Results:
    """A folder of results."""

    def __init__(self, folder: Path, pool: Pool) -> None:
        self._folder = folder
        self._pool = pool
        folder.mkdir(parents=True, exist_ok=True)

    def run(self, cases: Sequence[Case]) -> list[Result]:
        """Of each case; those that are not there are run."""
        self.fill(cases, lambda _more: None)
        results = [self._read(case) for case in cases]
        return [result for result in results if result is not None]

    def fill(self, cases: Iterable[Case], progress: Callable[[int], None]) -> None:
        """Run what is not there yet; ``progress`` is told how many more are."""
        missing = []
        for case in dict.fromkeys(cases):
            if self._path(case).exists():
                progress(1)
            else:
                missing.append(case)
        for start in range(0, len(missing), _BATCH):
            batch = missing[start : start + _BATCH]
            for case, result in zip(batch, self._pool.run(batch), strict=True):
                path = self._path(case)
                written = path.with_suffix(".new")
                written.write_bytes(orjson.dumps(result.as_json()))
                written.replace(path)
            progress(len(batch))

    def _read(self, case: Case) -> Result | None:
        try:
            fields = orjson.loads(self._path(case).read_bytes())
        except FileNotFoundError:
            return None
        return Result.from_json(fields)

    def _path(self, case: Case) -> Path:
        text = f"{case!r} {digest_of(case.policy.name)}"
        return self._folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"


@cache
def digest_of(policy: str, root: Path = _ROOT) -> str:
    """Of all code that a result of this policy hangs on."""
    digest = hashlib.sha256()
    for file in _sources(policy, root):
        digest.update(f"{file.relative_to(root)}\n".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _sources(policy: str, root: Path) -> list[Path]:
    if policy in BLIND:
        return _files(root, _STAGE)
    files = set(_files(root, _STAGE + _DECIDES))
    alone = set(_files(root, _OURS_ALONE))
    return sorted(files - alone if policy.startswith("llm-d-") else files | alone)


def _files(root: Path, parts: tuple[str, ...]) -> list[Path]:
    found: list[Path] = []
    for part in parts:
        path = root / part
        found += [path] if path.is_file() else path.rglob("*.py")
    return sorted(found)
