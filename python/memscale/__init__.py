"""memscale: a memory optimizer for PyTorch training.

    model = memscale.wrap(model, memscale.Config(memory_budget_gb=4.0))

Public names are imported at their first use, so ``import memscale`` is cheap and does not import
torch.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

_PUBLIC = {
    "wrap": "api",
    "detach": "api",
    "optimize": "api",
    "plan": "api",
    "trace": "api",
    "stream": "api",
    "load_checkpoint": "api",
    "check_checkpoint": "api",
    "apply_all_optimizations": "api",
    "AutoTuner": "autotuning",
    "OOMPredictor": "autotuning",
    "estimate_savings": "autotuning",
    "connect": "observability.hosted",
    "disconnect": "observability.hosted",
    "enable_telemetry": "observability.telemetry",
    "disable_telemetry": "observability.telemetry",
    "Config": "config",
    "OptimizationMode": "config",
    "AsyncOffloadConfig": "config",
    "MemScaleError": "errors",
    "ConfigError": "errors",
    "ProfileError": "errors",
    "BudgetInfeasibleError": "errors",
    "OffloadError": "errors",
    "IntegrationError": "errors",
}

# Packages that can be used on their own, such as `memscale.optim.AdamW`.
_PACKAGES = ("optim", "policy", "techniques")

# Modules that are attributes too. Their names are listed above or in their own documents.
_MODULES = ("core", "errors", "integrations", "offload")

__all__ = [*_PUBLIC, *_PACKAGES, "__version__"]

if TYPE_CHECKING:
    from . import core as core
    from . import errors as errors
    from . import integrations as integrations
    from . import offload as offload
    from . import optim as optim
    from . import policy as policy
    from . import techniques as techniques
    from .api import apply_all_optimizations as apply_all_optimizations
    from .api import check_checkpoint as check_checkpoint
    from .api import detach as detach
    from .api import load_checkpoint as load_checkpoint
    from .api import optimize as optimize
    from .api import plan as plan
    from .api import stream as stream
    from .api import trace as trace
    from .api import wrap as wrap
    from .autotuning import AutoTuner as AutoTuner
    from .autotuning import OOMPredictor as OOMPredictor
    from .autotuning import estimate_savings as estimate_savings
    from .config import AsyncOffloadConfig as AsyncOffloadConfig
    from .config import Config as Config
    from .config import OptimizationMode as OptimizationMode
    from .errors import (
        BudgetInfeasibleError as BudgetInfeasibleError,
    )
    from .errors import (
        ConfigError as ConfigError,
    )
    from .errors import (
        IntegrationError as IntegrationError,
    )
    from .errors import (
        MemScaleError as MemScaleError,
    )
    from .errors import (
        OffloadError as OffloadError,
    )
    from .errors import (
        ProfileError as ProfileError,
    )
    from .observability.hosted import connect as connect
    from .observability.hosted import disconnect as disconnect
    from .observability.telemetry import disable_telemetry as disable_telemetry
    from .observability.telemetry import enable_telemetry as enable_telemetry


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("._core", __name__).version()
    if name in _PACKAGES or name in _MODULES:
        return import_module(f".{name}", __name__)
    module = _PUBLIC.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{module}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


# An unwrapped run needs this too, if it is compared with a wrapped one. If torch is not fully loaded
# yet, `wrap()` does it.
if hasattr(sys.modules.get("torch"), "exp"):
    import_module(".base.vector_math", __name__).settle_vector_math()
