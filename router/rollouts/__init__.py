"""Releases as they are kept and brought about: the store's records, and what acts on them."""
