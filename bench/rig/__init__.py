"""What demo, benches and tests share: a real Envoy, simulated servers, a local Ray cluster, a load generator."""
