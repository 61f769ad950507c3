"""Encoders and decoders: texts to the vectors of sentence-transformers, pairs to the scores of rerankers."""
