"""Measuring and showing the picker: the rig, the demo and the benches. Not part of the installed package."""
