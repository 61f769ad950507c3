"""Text to ids and back: the tokenizer, and decoders for answers that arrive in pieces."""
