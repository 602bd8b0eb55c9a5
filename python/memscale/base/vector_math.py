"""Makes torch's first call of vector maths from one thread.

On x86 `exp`, `tanh`, `log` and similar functions are MKL's. Their first call in a process picks
code and accuracy for all later ones. If several threads make it together, one of them may compute
its part of this one tensor with a variant of low accuracy (errors up to 1e-2 in `exp`). The first
large GELU of a run is such a call: two runs of
the same script then differ from the first step on, with memscale or without. Called by
`wrap()`, and by ``import memscale`` if torch is already loaded.
"""

from __future__ import annotations

import torch

__all__ = ["settle_vector_math"]


def settle_vector_math() -> None:
    """After this call, equal inputs give equal bits in this process. Takes a few microseconds.

    The tensor is too small to be divided among threads. Changes no state of torch's.
    """
    torch.exp(torch.zeros(8, dtype=torch.float32, device="cpu"))
