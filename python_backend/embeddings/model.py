"""An embedding model on disk, loaded: texts or token ids to vectors of length 1."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from python_backend.embeddings.arithmetic import Floats, to_unit_length
from python_backend.embeddings.bert import BertEncoder, read_config
from python_backend.embeddings.word_pieces import WordPieces
from python_backend.engine.checkpoint import Checkpoint, unusable
from python_backend.engine.checkpoint.safetensors_files import read_json

# Enough rows for a matrix product at full speed, few enough for its results to stay in a core's cache.
SLICE_TOKENS = 256
# Fewer, where there are threads that would have nothing to do; each slice reads all weights once, though.
LEAST_SLICE_TOKENS = 16
_MODULES = ("Transformer", "Pooling", "Normalize")
_POOLING = "pooling_mode_"
_MEAN = f"{_POOLING}mean_tokens"


class EmbeddingModel:
    """`threads` work on slices of a batch; the products of each are meant to have one thread."""

    def __init__(self, encoder: BertEncoder, word_pieces: WordPieces, threads: int = 1) -> None:
        self._encoder = encoder
        self.word_pieces = word_pieces
        self.dimensions = encoder.config.hidden
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, "embeddings") if threads > 1 else None

    @classmethod
    def load(cls, directory: str | Path, threads: int = 1) -> EmbeddingModel:
        directory = Path(directory)
        check_description(directory)
        encoder = BertEncoder(Checkpoint(directory))
        word_pieces = WordPieces.load(directory, _max_tokens(directory, encoder.config.positions))
        if word_pieces.vocabulary > encoder.config.vocabulary:
            raise unusable(
                f"{directory}: the tokenizer has {word_pieces.vocabulary} tokens, the model "
                f"{encoder.config.vocabulary}"
            )
        return cls(encoder, word_pieces, threads)

    def embed(self, texts: Sequence[Sequence[int]]) -> Floats:
        """One vector of length 1 for each text, given as ids with their special tokens."""
        if not texts:
            return np.empty((0, self.dimensions), np.float32)
        slices = list(slices_of([len(text) for text in texts], self._threads))
        chosen = [[texts[index] for index in indices] for indices in slices]
        run = map if self._pool is None or len(slices) == 1 else self._pool.map
        vectors = np.empty((len(texts), self.dimensions), np.float32)
        for indices, pooled in zip(slices, run(self._encoder.pooled, chosen), strict=True):
            vectors[indices] = pooled
        return to_unit_length(vectors)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()


def slices_of(lengths: Sequence[int], threads: int = 1) -> Iterator[list[int]]:
    """Texts that are computed together, by index: the short ones first, those of one length side by side."""
    share = -(-sum(lengths) // threads)
    most = min(max(share, LEAST_SLICE_TOKENS), SLICE_TOKENS)
    taken: list[int] = []
    tokens = 0
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if taken and tokens + lengths[index] > most:
            yield taken
            taken, tokens = [], 0
        taken.append(index)
        tokens += lengths[index]
    if taken:
        yield taken


def shortened(vectors: Floats, dimensions: int) -> Floats:
    """The first so many values of each, of length 1 again."""
    return vectors if dimensions == vectors.shape[1] else to_unit_length(vectors[:, :dimensions])


def check_description(directory: Path) -> None:
    """Refuses what would be computed wrongly, by the small files alone."""
    _require_known_modules(directory)
    _require_mean_pooling(directory)
    _max_tokens(directory, read_config(read_json(directory / "config.json")).positions)


def _max_tokens(directory: Path, positions: int) -> int:
    path = directory / "sentence_bert_config.json"
    limit = read_json(path).get("max_seq_length") if path.is_file() else None
    if limit is not None and not (isinstance(limit, int) and 2 < limit <= positions):
        raise unusable(f"{path}: max_seq_length is {limit!r}; allowed: 3 to {positions}")
    return limit or positions


def _require_known_modules(directory: Path) -> None:
    """sentence-transformers lists here what it does in turn, in which only so much is computed here."""
    path = directory / "modules.json"
    if not path.is_file():
        return
    try:
        kinds = [module["type"].rpartition(".")[2] for module in json.loads(path.read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise unusable(f"{path} cannot be read: {error!r}") from error
    unknown = [kind for kind in kinds if kind not in _MODULES]
    if unknown:
        raise unusable(f"{path}: {unknown[0]} is not computed here; allowed: {', '.join(_MODULES)}")


def _require_mean_pooling(directory: Path) -> None:
    path = directory / "1_Pooling" / "config.json"
    if not path.is_file():
        return  # sentence-transformers takes the mean then
    chosen = [key for key, value in read_json(path).items() if key.startswith(_POOLING) and value is True]
    if chosen != [_MEAN]:
        raise unusable(f"{path}: {', '.join(chosen) or 'nothing'} is chosen; this encoder does {_MEAN} alone")
