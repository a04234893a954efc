"""Costs of single parts, in CPU time."""
