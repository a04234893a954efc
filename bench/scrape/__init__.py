"""What asking the endpoints for their metrics pages costs."""
