"""Everything that runs inside Triton: wire contract, engine, text and the adapter between them."""
