"""Encoders: texts to the vectors of sentence-transformers, pairs of texts to the scores of rerankers."""
