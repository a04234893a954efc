"""The HTTP/2 transport before a conformance test of others: ``python -m tests.conformance``."""
