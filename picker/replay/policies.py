"""The policies by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from picker.policy_file import means, parse_policy
from picker.replay.blend import BlendPicker
from picker.replay.ours import OurPicker
from picker.replay.pickers import AtRandom, LeastRequest, RoundRobin
from scorer.profile import built_in_profile

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from picker.replay.pickers import Picker

OURS = "ours"
ROUND_ROBIN = "round-robin"
_SIMPLE: dict[str, Callable[[int, Random], Picker]] = {
    ROUND_ROBIN: RoundRobin,
    "random": AtRandom,
    "least-request": LeastRequest,
}
_HEAD = b"apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
_BLENDS = {
    "llm-d-default": _HEAD,
    "llm-d-optimized": _HEAD
    + b"""\
plugins:
- {type: queue-scorer}
- {type: kv-cache-utilization-scorer}
- {type: prefix-cache-scorer}
- {type: no-hit-lru-scorer}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: kv-cache-utilization-scorer, weight: 2}
  - {pluginRef: prefix-cache-scorer, weight: 3}
  - {pluginRef: no-hit-lru-scorer, weight: 2}
""",
}
BUILT_IN = (*_SIMPLE, *_BLENDS, OURS)


@dataclass(frozen=True, slots=True)
class PolicyName:
    """A policy by its name: one of :data:`BUILT_IN`, or any name, and a policy file with its content."""

    name: str
    file: str = ""
    content: bytes = b""

    @property
    def asks(self) -> bool:
        """Whether a picker is asked; otherwise it is a balancer of Envoy's own."""
        return self.name not in _SIMPLE


def picker_for(  # noqa: PLR0913 - what pickers differ by
    policy: PolicyName,
    endpoints: int,
    random: Random,
    *,
    block_tokens: int,
    first_token_visible: bool,
    proxies: bool,
    replicas: int,
) -> Picker:
    """One replica of a picker with this policy. Raises PolicyFileError."""
    if policy.name in _SIMPLE:
        return _SIMPLE[policy.name](endpoints, random)
    if policy.name in _BLENDS:
        blend = parse_policy(_BLENDS[policy.name], policy.name, means(random, b""))
        return BlendPicker(endpoints, blend, random, block_tokens=block_tokens, proxies=proxies)
    profile = built_in_profile()
    if policy.file:
        profile = parse_policy(policy.content, policy.file, means(random, b"")).profile
    return OurPicker(
        endpoints,
        profile,
        random,
        block_tokens=block_tokens,
        first_token_visible=first_token_visible,
        proxies=proxies,
        replicas=replicas,
    )
