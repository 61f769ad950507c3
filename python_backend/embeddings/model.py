"""An encoder on disk, loaded: texts or token ids to vectors of length 1, or pairs of texts to scores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from python_backend.embeddings.description import Description, read_description
from python_backend.embeddings.families import family_of
from python_backend.embeddings.families.decoder import word_head
from python_backend.embeddings.families.reader import Family, Reader
from python_backend.embeddings.layers import Floats, Head
from python_backend.embeddings.packing import FIXED_PLACES, SLICE_PLACES, Slice, slices_of
from python_backend.embeddings.places import Places
from python_backend.embeddings.word_pieces import Tokens, WordPieces
from python_backend.engine.checkpoint import Checkpoint, unusable

_SHORTEST = np.float32(1e-12)
# Places of a slice on a GPU; and those that take as long as the kernels' start, by 0.6B decoders on an H200.
_PLACES_ON_GPU, _FIXED_ON_GPU = 16384, 2048


class Computing(Protocol):
    """What computes an encoder: an ONNX session, or torch on a GPU."""

    def run(self, inputs: Mapping[str, Any]) -> Floats:
        """One result for each text of a slice; `inputs` are those of `Places`."""


class EmbeddingModel:
    """Computes one slice of a batch after the other, of `most_places` each; one costs `fixed_places` more."""

    def __init__(
        self,
        computing: Computing,
        description: Description,
        word_pieces: WordPieces,
        most_places: int,
        fixed_places: int = FIXED_PLACES,
    ) -> None:
        self._computing = computing
        self._description = description
        self.word_pieces = word_pieces
        self.is_reranker = description.is_reranker
        self.dimensions = 1 if description.is_reranker else description.shape.hidden
        self._most_places, self._fixed_places = most_places, fixed_places

    @classmethod
    def load(
        cls, directory: str | Path, threads: int = 1, device: str = "cpu", precision: str = "fp32"
    ) -> EmbeddingModel:
        """On a CPU `threads` work together on each slice, in `precision`; a GPU computes in bf16."""
        directory = Path(directory)
        description = read_description(directory)
        shape = description.shape
        store = Checkpoint(directory)
        family = family_of(store.config)
        word_pieces = WordPieces.load(directory, description)
        if word_pieces.vocabulary > shape.vocabulary:
            found = f"the tokenizer has {word_pieces.vocabulary} tokens, the model {shape.vocabulary}"
            raise unusable(f"{directory}: {found}")
        read = family.reader(store)
        encoder, head = family.encoder(read), head_of(family, read, description)
        if device == "cuda":
            from python_backend.embeddings.cuda.encoder import TorchEncoder

            return cls(TorchEncoder(encoder, head), description, word_pieces, _PLACES_ON_GPU, _FIXED_ON_GPU)
        # Imported here: a GPU has no use for onnxruntime.
        from python_backend.embeddings.encoder_graph import encoder_session

        computing = encoder_session(encoder, head, threads, precision)
        return cls(computing, description, word_pieces, threads * SLICE_PLACES)

    def embed(self, texts: Sequence[Sequence[int] | Tokens]) -> Floats:
        """One vector of length 1 for each text, given as ids with their special tokens; or one score."""
        results = np.empty((len(texts), self.dimensions), np.float32)
        for indices, vectors in self.embed_in_slices(texts):
            results[indices] = vectors
        return results

    def embed_in_slices(self, texts: Sequence[Sequence[int] | Tokens]) -> Iterator[tuple[list[int], Floats]]:
        """The same as it is computed: which texts, and theirs. Short ones do not wait for long ones."""
        rows = [text if isinstance(text, Tokens) else Tokens(list(text)) for text in texts]
        pieces = slices_of([len(row) for row in rows], self._most_places, self._fixed_places)
        for piece in sorted(pieces, key=lambda piece: piece.width):
            yield [index for row in piece.rows for index in row], self._compute(rows, piece)

    def _compute(self, rows: Sequence[Tokens], piece: Slice) -> Floats:
        places = Places.of(rows, piece, self._description.pooling, self._description.shape.padding)
        results = self._computing.run(places.inputs())
        if self._description.is_reranker:
            return 1 / (1 + np.exp(-results)) if self._description.has_sigmoid else results
        return to_unit_length(results)


def head_of(family: Family, read: Reader, description: Description) -> Head | None:
    if description.answers is not None:
        return word_head(read, *description.answers)
    return family.head(read) if description.is_reranker else None


def shortened(vectors: Floats, dimensions: int) -> Floats:
    """The first so many values of each, of length 1 again."""
    return vectors if dimensions == vectors.shape[1] else to_unit_length(vectors[:, :dimensions])


def to_unit_length(vectors: Floats) -> Floats:
    """Each row divided by its L2 norm, as torch's `normalize` does it: a row of zeros stays one."""
    norms = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
    unit: Floats = vectors / np.maximum(norms, _SHORTEST)[:, None]
    return unit
