"""Makes torch's first call of vector maths on one thread.

On x86, torch computes `exp`, `tanh`, `log` and similar functions with MKL. Their first call in a
process selects code and accuracy for all later calls. If several threads make the first call
together, one of them may compute its part of the tensor at low accuracy (errors up to 1e-2 in
`exp`). The first large GELU of a run can be such a call. Two runs of the same script then differ
from the first step on, with memscale or without. `wrap()` calls this module, and so does
``import memscale`` if torch is already loaded.
"""

from __future__ import annotations

import torch

__all__ = ["settle_vector_math"]


def settle_vector_math() -> None:
    """Makes the first call, in a few microseconds. Afterwards equal inputs give equal bits in this process.

    The tensor is too small to be divided among threads. torch's state is unchanged.
    """
    torch.exp(torch.zeros(8, dtype=torch.float32, device="cpu"))
