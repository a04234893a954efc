"""The ext_proc protocol without sockets: message bytes in, effects out."""
