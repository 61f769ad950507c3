"""The first values of vectors that sentence-transformers makes with all-MiniLM-L6-v2."""

from __future__ import annotations

PUBLISHED = {
    "This is an example sentence": [0.0676569, 0.0634960, 0.0487131],
    "Each sentence is converted": [0.0864386, 0.1027626, 0.0053946],
}
