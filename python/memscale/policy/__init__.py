"""Stage 1: the policy that picks mode and eligible techniques for ``auto_policy=True``.

The rules, the trees of a trained policy and the numbers they look at are C's
(`memscale/policy.h`); here are their Python faces and the search for a trained artifact.
"""

from .artifact import TrainedPolicy, load_policy, seal_policy
from .decision import StrategyContext, StrategyDecision, plan_by_policy

__all__ = [
    "StrategyContext",
    "StrategyDecision",
    "TrainedPolicy",
    "load_policy",
    "plan_by_policy",
    "seal_policy",
]
