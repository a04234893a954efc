"""Choosing, as structures and pure functions over numpy: no I/O, no clock, no asyncio."""
