"""The Kubernetes API: the one client of the process, what is watched by it, and its leader's Lease."""
