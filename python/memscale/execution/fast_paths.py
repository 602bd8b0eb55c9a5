"""Keeps torch's fast paths for encoders as they are without memscale.

In evaluation mode `torch.nn.TransformerEncoder`, its layers and `torch.nn.MultiheadAttention` choose other kernels,
with other last bits, if no hook lies on a module of the layer and no function mode is on. A frozen encoder is in
evaluation mode while the rest of the model trains. memscale therefore runs before and after the `forward` of such
a module without a hook, and takes its own function modes off meanwhile (`around.py`).
"""

from __future__ import annotations

import torch

from ..base.compiler import is_compiled

__all__ = ["outermost", "unhookable"]


def _kinds() -> tuple[type[torch.nn.Module], ...]:
    return (torch.nn.TransformerEncoder, torch.nn.TransformerEncoderLayer, torch.nn.MultiheadAttention)


def outermost(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The modules of `model` that may take a fast path and do not lie in another one. Compiled code is left out: what
    lies around a forward in it would be compiled too."""
    if is_compiled(model):
        return []
    if isinstance(model, _kinds()):
        return [model]
    return list({id(found): found for child in model.children() for found in outermost(child)}.values())


def unhookable(model: torch.nn.Module) -> set[int]:
    """The identities of the modules that must not have hooks: those that may take a fast path, and their parts."""
    return {id(part) for found in outermost(model) for part in found.modules()}
