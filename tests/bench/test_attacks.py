"""The bench of attacks: one that is ended, one that is borne."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from bench.attacks.__main__ import main


@pytest.mark.parametrize(
    ("attack", "end"), [("100,000 continuations", "GOAWAY"), ("60 MB to be echoed", "open")]
)
def test_an_attack_is_survived(attack: str, end: str) -> None:
    result = CliRunner().invoke(main, ["--only", attack])
    assert result.exit_code == 0, result.output
    assert end in result.output
