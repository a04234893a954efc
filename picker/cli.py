"""The command line: ``serve-picker``, or ``python -m picker``."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, NoReturn

import click

from picker.commands import check_config, explain, gateway, top
from picker.commands.errors import WRONG_CALL, refuse
from picker.llm_d_flags import ALIASES, IGNORED, POOL, FlagsError, translate, with_double_dashes
from picker.observe import logs
from picker.settings import Settings, SettingsError, default, flag, load, unknown_variables
from picker.version import own_version

if TYPE_CHECKING:
    from collections.abc import Sequence

log = logging.getLogger(__name__)

_INTERRUPTED = 130
"""Exit code: ended by Ctrl-C, as shells write it."""


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and end the process with its exit code.

    A wrong call is answered in one line, like everything else that can be wrong at the start.
    """
    try:
        code = _group.main(args, standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(WRONG_CALL)
    except click.ClickException as error:
        refuse(error.format_message())
    except (click.Abort, KeyboardInterrupt):
        sys.exit(_INTERRUPTED)
    sys.exit(code)


@click.group()
@click.version_option(own_version(), prog_name="serve-picker")
def _group() -> None:
    """Tell Envoy which Ray Serve proxy or model server should get a request."""


def _option(name: str) -> click.Option:
    """The flag of a setting. Its value stays text, so that flags and variables are read alike."""
    description = Settings.model_fields[name].description
    text = f"{description} [{default(name)}]" if default(name) else description
    if Settings.model_fields[name].annotation is bool:
        return click.Option([flag(name)], metavar="[true|false]", help=text, is_flag=False, flag_value="true")
    return click.Option([flag(name)], metavar="VALUE", help=text)


def _llm_d_option(name: str) -> click.Option:
    """A flag of the llm-d picker. Whether it needs a value is no longer of interest."""
    names = [f"--{name}"] if len(name) > 1 else [f"-{name}", f"--{name}"]
    return click.Option(names, hidden=True, is_flag=False, flag_value="true")


class _Command(click.Command):
    """One whose flags may be written as Go takes them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, with_double_dashes(args))


def _serve(**flags: str | None) -> int:
    try:
        given, ignored = translate({name: value for name, value in flags.items() if value is not None})
        settings = load(given)
    except (FlagsError, SettingsError) as error:
        refuse(str(error))
    logs.configure(settings.log_level, settings.log_format)
    if ignored:
        log.warning("flags of the llm-d picker without meaning here", extra={"fields": ignored})
    for name, nearest in unknown_variables().items():
        log.warning("unknown variable", extra={"fields": {"name": name, "nearest": nearest}})

    from picker import app  # noqa: PLC0415 (grpc, numpy, aiohttp: 0.4 s that --help need not take)

    try:
        return app.run(settings)
    except app.StartError as error:
        refuse(str(error))


for _module in (gateway, explain, top, check_config):
    _group.add_command(_module.command)

_group.add_command(
    _Command(
        "serve",
        callback=_serve,
        params=[
            *(_option(name) for name in Settings.model_fields),
            *(_llm_d_option(name) for name in (*ALIASES, *POOL, *IGNORED)),
        ],
        short_help="Answer Envoy's ext_proc streams.",
        help="Answer Envoy's ext_proc streams. Each flag is also an environment variable "
        "(--grpc-port: PICKER_GRPC_PORT); the flag wins.",
    )
)


@_group.command(
    "replay",
    short_help="Compare policies on recorded requests, in simulated time.",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def _replay(context: click.Context, arguments: tuple[str, ...]) -> None:
    from picker.replay.command import replay  # noqa: PLC0415 (numpy: 0.3 s that --help need not take)

    replay.main([*arguments], context.command_path, standalone_mode=False)
