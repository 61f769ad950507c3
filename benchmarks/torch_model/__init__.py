"""A decoder in plain torch: what the CPU kernels are held against, in tests and in speed."""
