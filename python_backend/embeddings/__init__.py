"""Sentence embeddings on the CPU, with numpy alone: texts to the vectors of sentence-transformers."""
