"""The demo: Envoy's own balancing against the picker, before real Ray Serve."""
