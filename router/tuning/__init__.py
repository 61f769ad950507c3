"""Sets what nobody should have to type in: queue delays of Triton's batchers, from objectives and loads."""
