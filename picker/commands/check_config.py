"""``serve-picker check-config``: what a policy file comes to, or what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import click

from picker.commands.errors import refuse


@click.command("check-config", short_help="Say what a policy file comes to, or what is wrong with it.")
@click.argument("file", type=click.Path(path_type=Path))
def command(file: Path) -> int:
    """Say what the policy in FILE comes to; with 2 as exit code each mistake in it, in a line of its own."""
    from picker import policy_file  # noqa: PLC0415 (numpy: 0.2 s that --help need not take)

    try:
        policy = policy_file.check(file)
    except policy_file.PolicyFileError as error:
        for line in error.lines[:-1]:
            click.echo(f"serve-picker: {line}", err=True)
        refuse(error.lines[-1])
    click.echo(f"{file} can be used")
    told = [*policy_file.summary(policy), *(("note", note) for note in policy.notes)]
    for name, text in (*told, *(("warning", warning) for warning in policy.warnings)):
        click.echo(f"  {name:<10}  {text}")
    return 0
