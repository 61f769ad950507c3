"""Which layers keep their keys and values in the same blocks.

Where only some layers of a model have a sliding window, those that look at everything have blocks of their
own, and the others are put into as many groups of that size as they fill. So all blocks are equal, whatever
layers they serve, and one pool has them all: short sequences take them for every layer, and long ones nearly
all for the few that look at everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from python_backend.engine.kv.window_claims import Window, WindowClaims

# Groups that are not full cost short sequences memory; where that is more, all layers stay together.
_MOST_PADDING = 0.25


@dataclass(frozen=True, slots=True)
class KvLayout:
    """Layer i has the place `slots[i]` in the blocks of the table `tables[i]`.

    A block has places for `block_layers` layers. Where there are two kinds of layers, those that look at
    everything have the first table.
    """

    block_layers: int
    tables: tuple[int, ...]
    slots: tuple[int, ...]
    window: Window | None = None

    @property
    def table_count(self) -> int:
        return max(self.tables) + 1

    def blocks_for(self, tokens: int, tokens_per_block: int) -> int:
        """Which hold so many tokens however short the sequences are, or a little less; at least one."""
        return max(1, tokens // tokens_per_block) * self.table_count

    def blocks_of_one(self, tokens: int, tokens_per_block: int) -> int:
        """What a sequence so long takes."""
        stretches = -(-tokens // tokens_per_block)
        if self.window is None:
            return stretches
        in_window = WindowClaims(self.window, tokens_per_block).needed(0, stretches)
        return in_window if self.window.is_all else in_window + stretches


def kv_layout(windows: Sequence[int | None], longest_tokens: int, step_tokens: int) -> KvLayout:
    """`windows[i]` is layer i's; one that no sequence outgrows is none. None: it looks at everything."""
    outgrown = [None if window is None or window >= longest_tokens else window for window in windows]
    whole = [index for index, window in enumerate(outgrown) if window is None]
    found = [window for window in outgrown if window is not None]
    if not found:
        return one_table(len(windows))
    if not whole:
        return one_table(len(windows), Window(max(found), step_tokens=step_tokens))
    groups = -(-len(found) // len(whole))
    if (1 + groups) * len(whole) > (1 + _MOST_PADDING) * len(windows):
        return one_table(len(windows))
    tables, slots = [0] * len(windows), [0] * len(windows)
    windowed = [index for index, window in enumerate(outgrown) if window is not None]
    for number, index in enumerate((*whole, *windowed)):
        tables[index], slots[index] = divmod(number, len(whole))
    window = Window(max(found), groups, is_all=False, step_tokens=step_tokens)
    return KvLayout(len(whole), tuple(tables), tuple(slots), window)


def one_table(layers: int, window: Window | None = None) -> KvLayout:
    return KvLayout(layers, (0,) * layers, tuple(range(layers)), window)
