"""Free TCP ports on the loopback address, as the gateway finds them for its own processes."""

from picker.gateway.ports import LOOPBACK, free_port, free_ports

__all__ = ["LOOPBACK", "free_port", "free_ports"]
