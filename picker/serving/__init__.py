"""gRPC transports, health, TLS, and the orderly end."""
