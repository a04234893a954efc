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
_DECIDES = ("picker/inference", "picker/routing", "picker/policy_file.py", "scorer")
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
        roots = _STAGE if case.policy.name in BLIND else _STAGE + _DECIDES
        text = f"{case!r} {_digest(roots)}"
        return self._folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"


@cache
def _digest(roots: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for root in roots:
        path = _ROOT / root
        for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()
