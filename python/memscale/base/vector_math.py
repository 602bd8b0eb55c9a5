"""Makes torch's first call of vector maths from one thread.

On x86 `exp`, `tanh`, `log` and their like are MKL's. Their first call in a process picks
code and accuracy for all later ones, and where several threads make it together, now and
then one of them computes its part of this one tensor with a variant of low accuracy
(errors up to 1e-2 in `exp`). The first large GELU of a run is such a call: two runs of
the same script then differ from the first step on, with memscale or without. Called by
`wrap()`, and by ``import memscale`` where torch is loaded by then.
"""

from __future__ import annotations

import torch

__all__ = ["settle_vector_math"]


def settle_vector_math() -> None:
    """After this, equal inputs give equal bits in this process. A few microseconds.

    So few elements are never divided among threads. Changes no state of torch's.
    """
    torch.exp(torch.zeros(8, dtype=torch.float32, device="cpu"))
