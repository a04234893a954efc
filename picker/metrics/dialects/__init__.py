"""The names each kind of server uses on its metrics page."""
