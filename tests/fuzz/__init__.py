"""Whatever a client sends, the server stays whole: ``python -m tests.fuzz --minutes 10``."""
