"""From a request and the fleet to a decision; keeps the ledger and the breakers."""
