"""CPU and latency of the picker through a real Envoy."""
