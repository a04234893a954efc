"""Envoy and the picker as one command, for people without Kubernetes."""
