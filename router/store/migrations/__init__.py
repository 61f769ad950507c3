"""Every change the schema has seen, oldest first."""
