"""What demo, benches and tests share: a real Envoy, simulated servers, a Ray cluster, a load generator."""
