"""What a process has cost so far."""

from __future__ import annotations

import os
from pathlib import Path

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
RSS_LINE = "VmRSS:"


def cpu_seconds(pid: int) -> float:
    """Seconds of CPU, user and system, of all threads that a process has or had.

    The kernel counts in ticks of usually 10 ms: measure over enough work. See proc_pid_stat(5).
    """
    # The second field, the command's name in parentheses, may itself hold spaces and parentheses.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    user, system = int(fields[11]), int(fields[12])
    return (user + system) / TICKS_PER_SECOND


def resident_bytes(pid: int) -> int:
    """Bytes of memory that a process holds."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(RSS_LINE):
            return int(line.split()[1]) * 1024
    return 0
