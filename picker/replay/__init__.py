"""Requests of a trace played against simulated servers, around the picker's own routing and scorer."""
