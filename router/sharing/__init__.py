"""What several routers before the same Tritons tell each other: what tenants used, what places are taken."""
