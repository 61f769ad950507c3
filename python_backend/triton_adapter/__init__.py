"""The only code that knows Triton's Python backend: tensors in, values out, and back again."""
