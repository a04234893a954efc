"""Our own scorers, by their names in policies. A further one is one more line, and a section of the docs."""

from __future__ import annotations

from scorer import affinity, scorers
from scorer.plugins.plugin import of_scorer

OWN = (
    of_scorer("least-load", scorers.least_load),
    of_scorer("least-work", scorers.least_work, uses_prefix=True),
    of_scorer("ray-load", scorers.ray_load),
    of_scorer("model-affinity", affinity.model_affinity),
    of_scorer("prefix-home", affinity.prefix_home, uses_prefix=True),
    of_scorer("session-affinity", affinity.session_affinity),
)
