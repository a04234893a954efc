"""Every plugin that a policy can name."""

from __future__ import annotations

from scorer.plugins.choosers import CHOOSERS
from scorer.plugins.context_length import CONTEXT_LENGTH
from scorer.plugins.detectors import DETECTORS
from scorer.plugins.filters import FILTERS
from scorer.plugins.own import OWN
from scorer.plugins.producers import PRODUCERS
from scorer.plugins.scorers import SCORERS
from scorer.plugins.sessions import SESSIONS

PLUGINS = {
    type_.name: type_
    for type_ in (
        *FILTERS,
        *SCORERS,
        *CONTEXT_LENGTH,
        *SESSIONS,
        *CHOOSERS,
        *DETECTORS,
        *PRODUCERS,
        *OWN,
    )
}
"""By name. Parsers are named by whoever reads requests; see :class:`scorer.plugins.plugin.Means`."""
