"""Our own scorers, by their names in policies. A further one is one more line, and a section of the docs."""

from __future__ import annotations

from scorer import scorers
from scorer.plugins.plugin import of_scorer

OWN = (of_scorer("least-load", scorers.least_load),)
