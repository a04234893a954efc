"""Random numbers that are remembered, so that a decision can be explained.

Apart from what draws them, because a class of the C library cannot be extended in compiled code (setup.py).
"""

from __future__ import annotations

from random import Random


class Draws(Random):
    """The numbers of ``source``, which are noted in ``drawn`` until that is cleared: a decision's draws.

    Whatever a chooser asks of it (an integer, a shuffle) comes from :meth:`random`.
    """

    def __init__(self, source: Random) -> None:
        super().__init__(0)
        self._source = source
        self.drawn: list[float] = []

    def random(self) -> float:
        """The next number of the source."""
        number = self._source.random()
        self.drawn.append(number)
        return number
