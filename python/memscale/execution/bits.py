"""The masks of an accelerator as bits: they become an eighth of their bytes, by torch's operators on the device.

The extension makes a `Bits` for each mask that the plan packs (ext/execute_bits.c), and asks it for the mask in
backward. No value is read on the host, so no call waits for the device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["Bits"]


class Bits:
    """A storage of truth values, as bits.

    Bit k of byte i is value ``k * step + i`` for ``step`` bytes. So an operator reads and writes whole runs of memory,
    and needs no memory beside the bits.
    """

    def __init__(self, storage: torch.UntypedStorage) -> None:
        """Packs the storage on the current stream; the storage may be released at once."""
        import torch

        with torch._C._DisableTorchDispatch(), torch.no_grad():
            truths = _bytes_of(storage).view(torch.bool)
            first, *rest = truths.split(-(-truths.numel() // 8))
            self._bits = first.to(torch.uint8)
            for place, values in enumerate(rest, 1):
                self._bits[: values.numel()].add_(values, alpha=1 << place)
            self._stream = _current_stream(truths)
            truths.record_stream(self._stream)  # it may belong to another

    def unpack(self, storage: torch.UntypedStorage) -> None:
        """Writes the truth values to a storage of the current stream."""
        import torch

        with torch._C._DisableTorchDispatch(), torch.no_grad():
            self.order()
            truths = _bytes_of(storage)
            self._bits.record_stream(stream := _current_stream(truths))
            self._stream = stream
            for place, values in enumerate(truths.split(self._bits.numel())):
                torch.bitwise_right_shift(self._bits[: values.numel()], place, out=values)
            truths.bitwise_and_(1)

    def order(self) -> None:
        """Makes the current stream wait for the bits, and for the values last unpacked from them."""
        current = _current_stream(self._bits)
        if current != self._stream:
            current.wait_stream(self._stream)


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    import torch

    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _current_stream(tensor: torch.Tensor) -> torch.Stream:
    import torch

    found: torch.Stream = torch.get_device_module(tensor.device).current_stream(tensor.device)
    return found
