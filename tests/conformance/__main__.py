"""``python -m tests.conformance``: h2spec against the HTTP/2 transport, in plaintext and over TLS.

It is a Go program, built from its module where Go is at hand. Exit code 1: a case failed that is not
known to, or one of those passed.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import click

from bench.rig.child import PROJECT, Child, scratch_directory

if TYPE_CHECKING:
    from pathlib import Path

MODULE = "github.com/summerwind/h2spec"
VERSION = "v2.2.1+incompatible"
BINARIES = PROJECT / "bench" / "out" / "bin"
DEADLINE = 300.0

_NO_GRPC = (
    "it asks by GET, and waits for the body of an answer; a request that is no gRPC gets 415 without one"
)
_TABLE = "it acknowledges our SETTINGS_HEADER_TABLE_SIZE of 0 and uses a table all the same (RFC 7541, 4.2)"
KNOWN = {
    ("generic/2", "Sends a WINDOW_UPDATE frame on half-closed (remote) stream"): _NO_GRPC,
    ("generic/2", "Sends a PRIORITY frame on half-closed (remote) stream"): _NO_GRPC,
    ("generic/5", "Sends a dynamic table size update"): _TABLE,
    ("generic/5", "Sends multiple dynamic table size update"): _TABLE,
    ("http2/6.10", "Sends multiple CONTINUATION frames preceded by a HEADERS frame"): _TABLE,
    ("http2/4.2", "Sends a large size HEADERS frame that exceeds the SETTINGS_MAX_FRAME_SIZE"): (
        "its 20,000 bytes are less than the SETTINGS_MAX_FRAME_SIZE that we told it"
    ),
    (
        "http2/5.1.2",
        "Sends HEADERS frames that causes their advertised concurrent stream limit to be exceeded",
    ): "its streams are over as soon as they are opened (415), so there never are too many",
}
"""The cases that fail, and why that is right."""

Case = tuple[str, str]


def build() -> Path:
    """The program, built if it is not there yet."""
    program = BINARIES / "h2spec"
    if program.exists():
        return program
    go = shutil.which("go")
    if go is None:
        raise click.ClickException("needs Go to build h2spec: https://go.dev/doc/install")
    environment = {**os.environ, "GOBIN": str(BINARIES)}
    subprocess.run([go, "install", f"{MODULE}/cmd/h2spec@{VERSION}"], env=environment, check=True)
    return program


async def results(program: Path, *, tls: bool) -> dict[Case, bool]:
    """Which cases pass; those that h2spec skips are left out."""
    async with AsyncExitStack() as stack:
        directory = scratch_directory(stack, None)
        argv = [sys.executable, "-m", "bench.transport.echo", "--transport", "http2", *(["--tls"] * tls)]

        def listening() -> re.Match[str] | None:
            return re.search(r"^listening on ([\d.]+):(\d+)\n", child.log_text(), re.MULTILINE)

        async def ready() -> bool:
            return listening() is not None

        child = Child("the echo", argv, ready=ready, log_path=directory / "echo.log")
        await stack.enter_async_context(child)
        found = listening()
        host, port = found.groups() if found else ("", "")
        report = directory / "report.xml"
        options = ["-h", host, "-p", port, "--timeout", "2", "--junit-report", str(report)]
        spec = await asyncio.create_subprocess_exec(
            program, *options, *(["-t", "-k"] * tls), stdout=asyncio.subprocess.DEVNULL
        )
        async with asyncio.timeout(DEADLINE):
            await spec.wait()
        return _read(report)


def _read(report: Path) -> dict[Case, bool]:
    cases: dict[Case, bool] = {}
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - written by the program we ran
        if case.find("skipped") is None:
            passed = case.find("error") is None and case.find("failure") is None
            cases[case.get("package", ""), case.get("classname", "")] = passed
    return cases


@click.command()
def main() -> None:
    """Run h2spec and hold its result against what is known."""
    program = build()
    wrong = False
    for tls in (False, True):
        cases = asyncio.run(results(program, tls=tls))
        failed = {case for case, passed in cases.items() if not passed}
        passed = len(cases) - len(failed)
        click.echo(f"{'TLS' if tls else 'plaintext'}: {passed} of {len(cases)} cases passed")
        for case in sorted(failed | KNOWN.keys()):
            if case not in failed:
                click.echo(f"  {' '.join(case)}: passed; take it off the list")
            else:
                click.echo(f"  {' '.join(case)}: {KNOWN.get(case, 'FAILED')}")
        wrong = wrong or failed != KNOWN.keys()
    sys.exit(wrong)


if __name__ == "__main__":
    main()
