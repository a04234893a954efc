"""Clients that mean harm, against a real picker."""
