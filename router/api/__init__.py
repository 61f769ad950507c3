"""The OpenAI-compatible door: bodies in, answers and errors out."""
