"""The commands of ``serve-picker``, one a module: flags and what they mean, no work."""
