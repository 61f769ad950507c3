"""Small arrays on their way to the device, without waiting for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ALIGNMENT_BYTES = 16


class Staging:
    """Pinned memory for so many steps, used in turn.

    A copy to the device reads its source after the call returned, so a step's memory is written again only
    `steps` steps later, when the step that read it has long been collected.
    """

    def __init__(self, device: torch.device, bytes_per_step: int, steps: int = 4) -> None:
        self._device = device
        self._is_pinned = device.type == "cuda"
        self._memory = [
            torch.empty(bytes_per_step, dtype=torch.uint8, pin_memory=self._is_pinned) for _ in range(steps)
        ]
        self._views = [memory.numpy() for memory in self._memory]
        self._step = 0
        self._used_bytes = 0

    def begin_step(self) -> None:
        self._step = (self._step + 1) % len(self._memory)
        self._used_bytes = 0

    def upload(self, array: NDArray[Any]) -> torch.Tensor:
        """The array on the device."""
        source = self._staged(array)
        # A clone on the CPU: there is no copy between machines that would make one.
        return source.to(self._device, non_blocking=True) if self._is_pinned else source.clone()

    def upload_into(self, target: torch.Tensor, array: NDArray[Any]) -> None:
        target.copy_(self._staged(array), non_blocking=True)

    def _staged(self, array: NDArray[Any]) -> torch.Tensor:
        """A pinned copy; what does not fit any more gets memory of its own, which takes longer."""
        array = np.ascontiguousarray(array)
        start = self._used_bytes
        end = start + array.nbytes
        if end > len(self._views[self._step]):
            return torch.from_numpy(array.copy())
        self._used_bytes = -(-end // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        self._views[self._step][start:end] = array.reshape(-1).view(np.uint8)
        return self._memory[self._step][start:end].view(_dtype_of(array)).view(array.shape)


class Arrivals:
    """The other way: pinned memory that the results of a step are copied into, used in turn.

    It is there from the beginning, for to get some waits until the device has nothing to do.
    """

    def __init__(self, device: torch.device, count: int, dtype: torch.dtype, steps: int = 4) -> None:
        self._is_pinned = device.type == "cuda"
        self._memory = [torch.empty(count, dtype=dtype, pin_memory=self._is_pinned) for _ in range(steps)]
        self._step = 0

    def take(self, tensor: torch.Tensor) -> torch.Tensor:
        """Where the tensor will be on the host as soon as the device has come so far."""
        self._step = (self._step + 1) % len(self._memory)
        target = self._memory[self._step][: len(tensor)]
        return target.copy_(tensor, non_blocking=self._is_pinned)


def copy_to_host(tensor: torch.Tensor) -> torch.Tensor:
    """For what is rarely asked for; there when the device has come so far."""
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    return host.copy_(tensor, non_blocking=tensor.is_cuda)


def _dtype_of(array: NDArray[Any]) -> torch.dtype:
    dtype: torch.dtype = torch.from_numpy(np.empty(0, array.dtype)).dtype
    return dtype
