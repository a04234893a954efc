"""The command line: ``serve-picker``, or ``python -m picker``."""

from __future__ import annotations

import difflib
import logging
import sys
from typing import TYPE_CHECKING, NoReturn

import click

from picker.commands import check_config, explain, gateway, top
from picker.commands.errors import WRONG_CALL, refuse
from picker.llm_d_flags import (
    ALIASES,
    ASKS_FOR_AUTH,
    IGNORED,
    POOL,
    FlagsError,
    asks_for_auth,
    translate,
    with_double_dashes,
)
from picker.observe import logs
from picker.settings import Settings, SettingsError, default, flag, load, unknown_variables, with_hint
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


class _Group(click.Group):
    """Suggests the nearest command for one that there is not."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does. Raises UsageError."""
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            near = difflib.get_close_matches(name, self.list_commands(ctx), n=1)
            known = ", ".join(self.list_commands(ctx))
            mend = f"did you mean {near[0]}?" if near else f"there are {known}"
            raise click.UsageError(f"no such command {name!r}; {mend}", ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=_Group)
@click.version_option(own_version(), prog_name="serve-picker")
def _group() -> None:
    """Tell Envoy which Ray Serve proxy or model server should get a request."""


COMMON = frozenset(
    (
        *("bind", "grpc_port", "health_port", "metrics_port", "admin_port", "http_auth"),
        *("endpoints", "endpoints_file", "pool", "service", "ray_service", "ray_head"),
        *("config_file", "objects_file", "fallbacks", "read_usage"),
        *("secure_serving", "cert_path", "client_ca", "drain_timeout", "log_level"),
    )
)
"""Settings that ``serve --help`` shows; ``--help-all`` shows every one."""
SECTIONS = {
    "bind": "Ports",
    "endpoints": "The pool, one of these",
    "leader_election": "Rules and policy",
    "strict_bodies": "Requests",
    "transport": "Transport and TLS",
    "metrics_interval": "Metrics of the pool",
    "decision_timeout": "Deadlines and bounds",
    "log_level": "Logs",
}
"""Headings of the help, by the setting that each begins with."""


_ALL = "picker.cli.all"
"""Set in a call's notes where every flag is to be shown."""


class _SettingOption(click.Option):
    """The flag of a setting."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """None for one that is to be seen only among all."""
        return super().get_help_record(ctx) if self.name in COMMON or _ALL in ctx.meta else None


def _option(name: str) -> click.Option:
    """The flag of a setting. Its value stays text, so that flags and variables are read alike."""
    description = Settings.model_fields[name].description
    text = f"{description} [{default(name)}]" if default(name) else description
    if Settings.model_fields[name].annotation is bool:
        return _SettingOption(
            [flag(name)], metavar="[true|false]", help=text, is_flag=False, flag_value="true"
        )
    return _SettingOption([flag(name)], metavar="VALUE", help=text)


def _llm_d_option(name: str) -> click.Option:
    """A flag of the llm-d picker. Whether it needs a value is no longer of interest."""
    names = [f"--{name}"] if len(name) > 1 else [f"-{name}", f"--{name}"]
    return click.Option(names, hidden=True, is_flag=False, flag_value="true")


class _Command(click.Command):
    """One whose flags may be written as Go takes them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, with_double_dashes(args))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the flags that are not hidden below the headings of their sections."""
        shown: dict[str, list[tuple[str, str]]] = {}
        title = ""
        for parameter in self.get_params(ctx):
            title = SECTIONS.get(parameter.name or "", title)
            if parameter.name in ("help", "help_all"):
                title = "Help"
            record = parameter.get_help_record(ctx)
            if record is not None:
                shown.setdefault(title, []).append(record)
        for heading, records in shown.items():
            with formatter.section(heading):
                formatter.write_dl(records)


def _help_all(context: click.Context, _parameter: click.Parameter, asked: bool) -> None:
    """Show the help with the flag of every setting, and end."""
    if not asked or context.resilient_parsing:
        return
    context.meta[_ALL] = True
    click.echo(context.get_help())
    context.exit()


def _serve(**flags: str | None) -> int:
    told = {name: value for name, value in flags.items() if value is not None}
    try:
        given, ignored = translate(told)
        settings = load(given)
    except FlagsError as error:
        refuse(str(error))
    except SettingsError as error:
        refuse(with_hint(str(error)))
    logs.configure(settings.log_level, settings.log_format)
    if ignored:
        log.warning("flags of the llm-d picker without meaning here", extra={"fields": ignored})
    if asks_for_auth(told) and settings.http_auth == "none":
        log.warning(
            "metrics are there for everybody who can connect; --metrics-endpoint-auth asks for tokens,"
            " which PICKER_HTTP_AUTH=kubernetes checks"
        )
    for name, nearest in unknown_variables().items():
        log.warning("unknown variable", extra={"fields": {"name": name, "nearest": nearest}})

    from picker import app  # noqa: PLC0415 (numpy, aiohttp: 0.4 s that --help need not take)

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
            click.Option(
                ["--help-all"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=_help_all,
                help="Show every flag and exit.",
            ),
            *(_llm_d_option(name) for name in (*ALIASES, *POOL, ASKS_FOR_AUTH, *IGNORED)),
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
