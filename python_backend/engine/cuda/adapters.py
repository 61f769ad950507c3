"""LoRA adapters on the GPU: where they lie, and which row of a step has which."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from python_backend.engine.adapters.adapter import Adapter, Pair, Part, part_sizes
from python_backend.engine.cuda.kernels.adapters import RANKS, ROWS, RowTiles, expand, shrink
from python_backend.engine.cuda.kernels.experts import arrange
from python_backend.engine.models.decoder import DecoderShape
from python_backend.wire.errors import ErrorKind, InflightError

_FIRST_OF = {Part.QUERY: 3, Part.ATTENTION_OUT: 1, Part.GATE: 2, Part.DOWN: 1}
# Left free for steps, whatever adapters ask for.
_SPARE_BYTES = 256 << 20


class CudaAdapters:
    """Memory is taken when an adapter comes, and given back when it goes.

    Steps find the matrices by the addresses in tables on the device: an entry for each layer and part. Ranks
    are filled up there, as the kernels want them.
    """

    def __init__(
        self, shape: DecoderShape, places: int, max_rank: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.places = places
        self.max_rank = max_rank
        self._shape = shape
        self.dtype = dtype
        self._device = device
        self._widths = {part: outputs for part, (_, outputs) in part_sizes(shape).items()}
        size = (max(1, places), shape.layers * len(Part))
        self.shrink_at = torch.zeros(size, dtype=torch.int64, device=device)
        self.expand_at = torch.zeros(size, dtype=torch.int64, device=device)
        self.ranks = torch.zeros(size, dtype=torch.int32, device=device)
        self._matrices: dict[int, torch.Tensor] = {}
        self._rank_of: dict[int, int] = {}

    @property
    def rank(self) -> int:
        """As many as the widest of those that are here has, in steps that are recorded apart; 0: none."""
        if not self._rank_of:
            return 0
        return max(RANKS, 1 << (max(self._rank_of.values()) - 1).bit_length())

    def warm_rank(self) -> int:
        """The rank that most have."""
        return RANKS

    @torch.inference_mode()
    def put(self, place: int, adapter: Adapter) -> None:
        self.clear(place)
        numbers = sum(_size(pair) for layer in adapter.layers for pair in layer.values())
        self._require_room(adapter.name, numbers)
        flat = np.zeros(numbers, np.float32)
        entries = np.zeros((3, self.ranks.shape[1]), np.int64)
        at = 0
        for index, layer in enumerate(adapter.layers):
            for part, pair in layer.items():
                entry, rank = index * len(Part) + part, _filled_up(pair.rank)
                middle, end = at + rank * pair.shrink.shape[1], at + _size(pair)
                entries[:, entry] = at, middle, rank
                flat[at:middle].reshape(rank, -1)[: pair.rank] = pair.shrink
                flat[middle:end].reshape(-1, rank)[:, : pair.rank] = pair.expand
                at = end
        # On the stream of the steps: one that still reads what lay here comes before.
        matrices = torch.from_numpy(flat).to(self.dtype).to(self._device)
        entries[:2] = matrices.data_ptr() + entries[:2] * matrices.element_size()
        told = torch.from_numpy(entries).to(self._device)
        self.shrink_at[place], self.expand_at[place] = told[0], told[1]
        self.ranks[place] = told[2].to(torch.int32)
        self._matrices[place], self._rank_of[place] = matrices, adapter.rank

    @torch.inference_mode()  # as whoever made the tensors
    def clear(self, place: int) -> None:
        if place in self._matrices:
            self.ranks[place] = 0
            # Its memory is handed out again on the same stream alone, behind the steps that read it.
            del self._matrices[place], self._rank_of[place]

    def _require_room(self, name: str, numbers: int) -> None:
        if self._device.type != "cuda":
            return
        needed = numbers * self.dtype.itemsize
        free, _ = torch.cuda.mem_get_info(self._device)
        kept = torch.cuda.memory_reserved(self._device) - torch.cuda.memory_allocated(self._device)
        if free + kept < needed + _SPARE_BYTES:
            raise InflightError(
                ErrorKind.OVERLOADED,
                f"adapter {name} needs {needed / 1e6:,.0f} MB, and {(free + kept) / 1e6:,.0f} MB "
                "of the GPU's memory are free: lower kv_cache_free_gpu_mem_fraction or inflight_max_adapters",
            )

    def of_rows(self, places: torch.Tensor, rank: int) -> RowAdapters:
        """Of rows whose adapters have these places, -1: none; `rank` is at least that of each."""
        return RowAdapters(self, places, RowTiles(*arrange(places, len(self.ranks), ROWS)), rank)

    def add(
        self, adapted: RowAdapters, layer: int, first: Part, rows: torch.Tensor, out: torch.Tensor
    ) -> None:
        widths = tuple(self._widths[Part(first + number)] for number in range(_FIRST_OF[first]))
        entry, tiles, ranks = layer * len(Part) + first, adapted.tiles, self.ranks
        shrunk = shrink(rows, tiles, self.shrink_at, ranks, entry, len(widths), adapted.rank)
        expand(out, shrunk, tiles, self.expand_at, ranks, entry, widths, self.dtype)


def _filled_up(rank: int) -> int:
    return -(-rank // RANKS) * RANKS


def _size(pair: Pair) -> int:
    return _filled_up(pair.rank) * (pair.shrink.shape[1] + len(pair.expand))


@dataclass(frozen=True, slots=True)
class RowAdapters:
    """The adapter of each row of a step, by its place, and the rows of each."""

    memory: CudaAdapters
    places: torch.Tensor
    tiles: RowTiles
    rank: int

    def chosen(self, rows: torch.Tensor) -> RowAdapters:
        return self.memory.of_rows(self.places.index_select(0, rows), self.rank)

    def add(self, layer: int, first: Part, rows: torch.Tensor, out: torch.Tensor) -> None:
        """What the adapters make of the rows, onto what the layer's own product made of them."""
        self.memory.add(self, layer, first, rows, out)

    def add_onto(
        self, layer: int, first: Part, rows: torch.Tensor, hidden: torch.Tensor, delta: torch.Tensor | None
    ) -> None:
        """The same for a product that is still to be added, whole or in parts, or has been added already."""
        if delta is None:
            self.add(layer, first, rows, hidden)
        else:
            self.add(layer, first, rows, delta[0] if delta.dim() == 3 else delta)
