"""What the picker tells about itself: logs and Prometheus metrics."""
