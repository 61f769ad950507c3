"""How many users there are at which moment of a load test."""
