"""Pictures of the live page for the docs."""
