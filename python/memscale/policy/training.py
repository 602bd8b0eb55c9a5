"""Trains a policy on a corpus and exports it: ``python -m memscale.policy.training CORPUS --output policy.json``.

For each strategy LightGBM predicts its cost: the regret in step time against the best strategy, a penalty if no plan
fits, and a small price for the planner's work. The strategy of the lowest predicted cost is chosen. Leaves are rounded
to 2^-20, so that sums are exact, and C must give the library's own prediction on every row. Needs the extra
``training``.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .. import _core
from .artifact import TrainedPolicy, seal_policy
from .corpus import read_rows

__all__ = ["Rows", "load_rows", "main", "train"]

# Never trained on.
HELD_OUT_FAMILIES = ("qwen3", "convolutional")
HELD_OUT_CLASSES = ("cpu_sata", "gpu_a100")
HELD_OUT_PRESSURE = (1300, 1500)
# Trained on, except while the number of trees is found.
STOPPING_FAMILIES = ("mistral", "recurrent", "gpt2")

# A strategy under which nothing fits costs the search of the widest on top, and is never the better choice.
MISFIT_COST = 1.0
# Beyond it, a larger regret teaches nothing more, and would outweigh all other rows.
REGRET_MOST = 0.5
# The price of work, in steps for a whole search of the widest strategy: the median planning is twice as fast.
# Work beyond WORK_MOST costs no more: if a search is worth its time at all, it is better long.
WORK_COST = 0.039
WORK_MOST = 0.6

# Sizes and rates of the run itself are left to the ratios: they carry over to other models and machines.
FEATURES = (
    "pressure_permille",
    "on_gpu",
    "layer_count",
    "loop_observed",
    "event_count",
    "fixed_permille",
    "selective_peak_permille",
    "selective_step_permille",
    "recompute_peak_permille",
    "recompute_step_permille",
    "offload_peak_permille",
    "offload_step_permille",
    "moved_peak_permille",
    "moved_step_permille",
    "glance_peak_permille",
    "glance_step_permille",
)
# Left to the rules if outside of what was seen. Zeros, for what a machine lacks, are inside.
CHECKED = (
    "matmul_flops_per_s",
    "disk_write_bytes_per_s",
    "disk_read_bytes_per_s",
    "to_host_bytes_per_s",
    "layer_count",
    "event_count",
)
_UNIT = 2**20


# A policy chooses a pair: a strategy of the table, and the share of a second search without moves.
Action = tuple[int, int]


# Names and permille. All offer every technique: others fit nothing on some rows, or give a plan that is many
# times slower, which no saved planning outweighs.
_CHOICES = (
    ("everything", 250),
    ("everything", 0),
    ("everything, quick", 0),
    ("everything, quick", 1000),
    ("everything, quick", 250),
    ("everything, brief", 0),
    ("everything, brief", 1000),
    ("everything, brief", 250),
    ("everything, brief", 50),
    ("everything, glance", 0),
    ("everything, glance", 1000),
    ("everything, glance", 250),
    ("everything, glance", 50),
)


def actions() -> list[Action]:
    """Returns the choices after a glance, which are a policy's, then the whole table for who chooses without one."""
    places = {name: i for i, (name, *_) in enumerate(_core.policy_tables()[1])}
    return [(places[name], second) for name, second in _CHOICES] + [(i, 0) for i in places.values()]


# Among the actions, the widest strategy without a glance.
WIDEST = len(_CHOICES)
# The row of the table that a trained policy has planned under before it decides (ms_strategy_glance() in C).
GLANCE = [name for name, *_ in _core.policy_tables()[1]].index("everything, glance")


@dataclass
class Rows:
    """Rows that some strategy fits, as arrays: a row for each run, a column for each feature or each of `actions()`."""

    rows: list[dict[str, Any]]
    actions: list[Action]
    contexts: np.ndarray
    plans: np.ndarray  # whether there is a plan
    fits: np.ndarray  # and it is for a loop that holds as much as under any other strategy
    regret: np.ndarray  # over the best action that fits; that of the widest if the action itself does not fit
    work: np.ndarray  # replayed events over the widest strategy's; both searches if it does not fit
    held_out: np.ndarray

    def column(self, name: str) -> np.ndarray:
        """The values of one feature."""
        return self.contexts[:, _core.policy_tables()[0].index(name)]

    def price(self) -> np.ndarray:
        """Returns what training minimises, for each action on each row, in steps: regret and the planner's work."""
        worth: np.ndarray = np.where(self.fits, np.minimum(self.regret, REGRET_MOST), MISFIT_COST)
        worth += WORK_COST * np.minimum(self.work, WORK_MOST)
        return worth


def _second_of(action: Action) -> int | None:
    """The strategy of the second search, as an index into the table."""
    _, strategies = _core.policy_tables()
    for i, (_, mode, recomputes, moves, permille) in enumerate(strategies):
        if mode == "aggressive" and recomputes and not moves and permille == action[1]:
            return i
    return None


def _better(first: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Returns the better plan with the events of both. A plan that fits is better, then one for a loop that holds more,
    then the faster one."""
    more_care = (other[:, 1] > first[:, 1]) | ((other[:, 1] == first[:, 1]) & (other[:, 2] < first[:, 2]))
    is_better = (other[:, 0] > 0) & ((first[:, 0] == 0) | more_care)
    better = np.where(is_better[:, None], other, first)
    better[:, 4] = first[:, 4] + other[:, 4]
    return better


def _of_actions(outcomes: np.ndarray, listed: list[Action]) -> np.ndarray:
    """The outcomes of actions from those of strategies."""
    columns = []
    for place, action in enumerate(listed):
        column, second = outcomes[:, action[0]], _second_of(action)
        if place < WIDEST and action[0] != GLANCE:
            column = _better(column, outcomes[:, GLANCE])
        columns.append(column if second is None else _better(column, outcomes[:, second]))
    return np.stack(columns, axis=1)


def load_rows(*folders: Path) -> Rows:
    """The rows of all corpora that some strategy fits.

    Raises:
        ValueError: a part is damaged.
    """
    rows, listed = [row for folder in folders for row in read_rows(folder) if row["outcomes"][0][0]], actions()
    outcomes = _of_actions(np.array([row["outcomes"] for row in rows], dtype=np.float64), listed)
    fits, care, step, events = outcomes[:, :, 0] > 0, outcomes[:, :, 1], outcomes[:, :, 2], outcomes[:, :, 4]
    plans = fits.copy()
    fits &= care >= np.where(fits, care, -1).max(axis=1, keepdims=True)
    best = np.where(fits, step, np.inf).min(axis=1, keepdims=True)
    widest = slice(WIDEST, WIDEST + 1)
    step = np.where(fits, step, step[:, widest])
    work = np.where(fits, events, events + events[:, widest]) / events[:, widest]
    contexts = np.array([row["context"] for row in rows], dtype=np.float64)
    pressure = contexts[:, _core.policy_tables()[0].index("pressure_permille")]
    held_out = np.array([r["family"] in HELD_OUT_FAMILIES or r["class"] in HELD_OUT_CLASSES for r in rows])
    held_out |= (pressure >= HELD_OUT_PRESSURE[0]) & (pressure < HELD_OUT_PRESSURE[1])
    return Rows(rows, listed, contexts, plans, fits, step / best - 1, work, held_out)


# -- trees ------------------------------------------------------------------------------------


def _parameters(seed: int) -> dict[str, Any]:
    return {
        "objective": "regression",
        "num_leaves": 12,
        "learning_rate": 0.1,
        "min_data_in_leaf": 10,
        "lambda_l2": 5.0,
        "deterministic": True,
        "force_row_wise": True,
        "num_threads": 1,
        "seed": seed,
        "verbosity": -1,
    }


def _fit(inputs: np.ndarray, cost: np.ndarray, stops: np.ndarray, seed: int, most: int) -> Any:
    """One strategy's trees: their number is found on the stopping families, then all rows are used."""
    import lightgbm

    seen, unseen = lightgbm.Dataset(inputs[~stops], cost[~stops]), lightgbm.Dataset(inputs[stops], cost[stops])
    early = lightgbm.early_stopping(10, verbose=False)
    parameters = _parameters(seed)
    found = lightgbm.train(parameters, seen, most, valid_sets=[unseen], callbacks=[early])
    booster = lightgbm.train(parameters, lightgbm.Dataset(inputs, cost), max(1, found.best_iteration))
    for number, tree in enumerate(booster.dump_model()["tree_info"]):
        for leaf, value in enumerate(_leaf_values(tree["tree_structure"])):
            booster.set_leaf_output(number, leaf, round(value * _UNIT) / _UNIT)
    return booster


def _leaf_values(node: dict[str, Any]) -> list[float]:
    """By the leaf's number."""
    values: dict[int, float] = {}
    waiting = [node]
    while waiting:
        one = waiting.pop()
        if "leaf_value" in one:
            values[one.get("leaf_index", 0)] = one["leaf_value"]
        else:
            waiting += [one["left_child"], one["right_child"]]
    return [values[i] for i in range(len(values))]


def _nodes(tree: dict[str, Any]) -> tuple[list[list[int]], int]:
    """The tree as the artifact's rows, parents first, and the least cost of its leaves, which is taken off all."""
    least = min(round(value * _UNIT) for value in _leaf_values(tree))
    rows: list[list[int]] = []

    def add(node: dict[str, Any]) -> int:
        at = len(rows)
        if "leaf_value" in node:
            rows.append([round(node["leaf_value"] * _UNIT) - least])
            return at
        rows.append([])
        threshold = int(np.floor(node["threshold"]))  # values are whole: x <= 3.5 if x <= 3
        below = add(node["left_child"])
        rows[at] = [node["split_feature"], max(0, threshold), below, add(node["right_child"])]
        return at

    add(tree)
    return rows, least


def _ranges(rows: Rows, trained: np.ndarray, used: list[str]) -> list[dict[str, Any]]:
    features = []
    for name in used + [name for name in CHECKED if name not in used]:
        seen = np.sort(rows.column(name)[trained])
        numbers = {"least": int(seen[0]), "usual": int(seen[len(seen) // 2]), "most": int(seen[-1])}
        features.append({"name": name, **numbers, "is_checked": name in CHECKED})
    return features


def _body(name: str, rows: Rows, boosters: list[Any], chosen: list[int], used: list[str]) -> dict[str, Any]:
    """The policy as the artifact holds it."""
    strategies, trees, bases = _core.policy_tables()[1], [], []
    for place, booster in enumerate(boosters):
        base = 0
        for tree in booster.dump_model()["tree_info"]:
            nodes, least = _nodes(tree["tree_structure"])
            base += least
            trees.append({"strategy": place, "nodes": nodes})
        bases.append(base)
    listed = []
    for place, index in enumerate(chosen):
        first, second = rows.actions[index]
        _, mode, recomputes, moves, permille = strategies[first]
        row = {"mode": mode, "enable_checkpointing": recomputes, "enable_offloading": moves}
        row |= {"search_permille": permille, "second_permille": second}
        listed.append(row | {"base_cost": bases[place] - min(bases)})
    features = _ranges(rows, ~rows.held_out, used)
    return {"name": name, "features": features, "strategies": listed, "trees": trees}


# -- the whole --------------------------------------------------------------------------------


@dataclass
class Trained:
    """An artifact, and what it was made from."""

    artifact: str
    boosters: list[Any]
    chosen: list[int]  # indices into the rows' actions
    used: list[str]  # the features, in the order of the trees' inputs


def _inputs(rows: Rows, names: list[str]) -> np.ndarray:
    return np.stack([rows.column(name) for name in names], axis=1)


def train(rows: Rows, name: str, seed: int = 1, most_trees: int = 50) -> Trained:
    """Trains on the rows that are not held out. Strategies that are never chosen and features that no tree reads are
    left out, and the rest is trained again."""
    trained = ~rows.held_out
    stops = np.array([row["family"] in STOPPING_FAMILIES for row in rows.rows])[trained]
    cost, used = rows.price()[trained], list(FEATURES)
    chosen = list(range(len(_CHOICES)))
    for is_last in (False, True):
        inputs = _inputs(rows, used)[trained]
        boosters = [_fit(inputs, cost[:, index], stops, seed, most_trees) for index in chosen]
        read = sum(booster.feature_importance() for booster in boosters) > 0
        predicted = np.stack([booster.predict(inputs) for booster in boosters], axis=1).argmin(axis=1)
        kept = [index for place, index in enumerate(chosen) if place == 0 or np.mean(predicted == place) >= 0.005]
        if is_last or (read.all() and kept == chosen):
            break
        used, chosen = [name for name, is_read in zip(used, read, strict=True) if is_read] or used, kept
    body = _body(name, rows, boosters, chosen, used)
    return Trained(seal_policy(json.dumps(body)), boosters, chosen, used)


def check_equal(rows: Rows, trained: Trained) -> int:
    """Compares C's costs with the library's predictions on every row. Returns the number of compared costs.

    Raises:
        ValueError: one differs.
    """
    handle = TrainedPolicy(trained.artifact).handle
    inputs = _inputs(rows, trained.used)
    library = np.stack([booster.predict(inputs) for booster in trained.boosters], axis=1) * _UNIT
    ours = np.array([_core.policy_costs(handle, [int(v) for v in context]) for context in rows.contexts])
    offset = ours[0, 0] - library[0, 0]
    if not np.array_equal(library + offset, ours):
        raise ValueError("C's costs differ from the library's predictions")
    return int(ours.size)


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m memscale.policy.training", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("corpus", type=Path, nargs="+", help="a folder that memscale.policy.corpus made")
    parser.add_argument("--output", type=Path, required=True, help="receives the artifact")
    parser.add_argument("--name", default="memscale-1")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--trees", type=int, default=50, help="most trees of a strategy")
    asked = parser.parse_args(arguments)
    rows = load_rows(*asked.corpus)
    trained = train(rows, asked.name, asked.seed, asked.trees)
    compared = check_equal(rows, trained)
    asked.output.write_text(trained.artifact)
    print(f"{len(rows.rows)} rows, {len(trained.chosen)} strategies, {len(trained.used)} features: {trained.used}")
    print(f"{len(trained.artifact)} bytes; {compared} costs equal those of LightGBM")
    return 0


if __name__ == "__main__":
    sys.exit(main())
