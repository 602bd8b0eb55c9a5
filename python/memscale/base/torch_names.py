"""The list of torch's private names that memscale uses.

They are looked up once per process, before a model is wrapped or traced. If torch lacks a required
name, an error states it before a step can fail half-way. If torch lacks an optional name, a warning
is logged. A test compares the list with the sources.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

from .. import _core
from ..errors import IntegrationError

__all__ = ["check_torch", "torch_has"]

_log = logging.getLogger("memscale")

# Names below `torch`, grouped by the code that uses them. ext/execute_torch.c and
# ext/execute_top.c list the extension's names.
_REQUIRED: dict[str, tuple[str, ...]] = {
    "following a step": (
        "_C._functorch.maybe_current_level",
        "_C._current_graph_task_id",
        "_C._is_tracing",
        "autograd.Variable._execution_engine.queue_callback",
        "Tensor._version",
        "UntypedStorage._cdata",
    ),
    "tracing a step": (
        "_subclasses.fake_tensor.FakeTensor",
        "_subclasses.fake_tensor.FakeTensorMode",
        "_prims_common.suggest_memory_format",
        "_C._DisableTorchDispatch",
        "_C._should_allow_numbers_as_tensors",
        "utils._python_dispatch.TorchDispatchMode",
    ),
    "hooks": (
        "nn.modules.module._global_forward_hooks",
        "nn.modules.module._global_forward_pre_hooks",
        "nn.modules.module._global_backward_hooks",
        "nn.modules.module._global_backward_pre_hooks",
    ),
    "weights that parametrize.cached() keeps": (
        "nn.utils.parametrize._cache",
        "nn.utils.parametrize._cache_enabled",
    ),
    "settings that a replay restores": (
        "_C._get_deterministic_algorithms",
        "_C._get_deterministic_algorithms_warn_only",
        "_C._set_deterministic_algorithms",
        "_C._InferenceMode",
        "_C._set_grad_enabled",
        "_C._is_any_autocast_enabled",
        "_C._len_torch_dispatch_stack",
        "_C._len_torch_function_stack",
    ),
    "making single results again": (
        "_C._DisableAutocast",
        "_C._SetExcludeDispatchKeyGuard",
        "_C.DispatchKey.ADInplaceOrView",
        "utils._python_dispatch._get_current_dispatch_mode_stack",
        "utils._python_dispatch._pop_mode",
        "utils._python_dispatch._push_mode",
    ),
    "the loss heads": (
        "_C.DisableTorchFunctionSubclass",
        "_log_softmax_backward_data",
        "Tensor._make_wrapper_subclass",
        "overrides._get_current_function_mode_stack",
        "overrides._pop_mode",
        "overrides._push_mode",
    ),
}

_OPTIONAL: dict[str, str] = {
    "_C._autograd._get_current_graph_task_keep_graph": (
        "the exact loss head gives the gradient a buffer of its own, and a step takes one tokens x vocabulary "
        "buffer more than predicted"
    ),
    "_C._storage_Use_Count": (
        "the exact loss head gives the gradient a buffer of its own, and a step takes one tokens x vocabulary "
        "buffer more than predicted; pieces of a storage that a compiled layer saves are copied before they move"
    ),
}


def torch_has(name: str) -> bool:
    """Whether torch has `name`, a path below ``torch``."""
    return _find(name) is not None


def _find(path: str) -> Any:
    import torch

    found: Any = torch
    for name in path.split("."):
        found = getattr(found, name, None)
        if found is None:
            return None
    return found


@functools.cache
def check_torch() -> None:
    """Looks for every name, once per process if all are found. Must run outside the caller's modes.

    Raises:
        IntegrationError: this torch lacks a required name.
    """
    import torch
    import torch._subclasses.fake_tensor
    import torch.utils._python_dispatch

    for purpose, names in _REQUIRED.items():
        missing = [name for name in names if not torch_has(name)]
        if missing:
            raise _refusal(", ".join(f"torch.{name}" for name in missing), purpose)
    try:
        _core.storage_bytes([])  # C looks up its names at its first call
    except AttributeError as error:
        raise _refusal(str(error), "saved tensors") from error
    for name, consequence in _OPTIONAL.items():
        if not torch_has(name):
            _log.warning("torch %s has no torch.%s: %s", torch.__version__, name, consequence)


def _refusal(what: str, purpose: str) -> IntegrationError:
    import torch

    return IntegrationError(
        f"memscale uses names inside torch that torch {torch.__version__} does not have ({purpose}: {what}); "
        "use a version of torch that this release was tested with, or a newer memscale"
    )
