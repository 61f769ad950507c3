"""This engine beside llama.cpp and transformers on the same model, machine and run."""
