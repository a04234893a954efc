"""The command lines of ``sh`` blocks, as far as documents have any use for the shell."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_BETWEEN = {"&&", "||", ";", "|", "&"}


@dataclass
class Command:
    """One command: what is put into its environment, and its words."""

    words: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def program(self) -> str:
        return self.words[0]

    @property
    def flags(self) -> set[str]:
        """Its flags, without their values."""
        return {word.partition("=")[0] for word in self.words[1:] if word.startswith("-") and word != "-"}

    def __str__(self) -> str:
        return shlex.join([*(f"{name}={value}" for name, value in self.environment.items()), *self.words])


def commands(block: str) -> list[Command]:
    """The commands of a block. Raises ValueError for what is no plain command line."""
    return [command for line in block.replace("\\\n", " ").splitlines() for command in _of_line(line)]


def _of_line(line: str) -> list[Command]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|<>")
    lexer.whitespace_split, lexer.commenters = True, "#"
    found = [Command()]
    for word in lexer:
        assignment = _ASSIGNMENT.fullmatch(word)
        if word in _BETWEEN:
            found.append(Command())
        elif set(word) <= set(";&|<>"):
            raise ValueError(f"{word} in {line!r}")
        elif assignment and not found[-1].words:
            found[-1].environment[assignment[1]] = assignment[2]
        else:
            found[-1].words.append(word)
    return [command for command in found if command.words]
