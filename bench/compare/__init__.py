"""Another picker beside ours, by the same rig in the same minutes."""
