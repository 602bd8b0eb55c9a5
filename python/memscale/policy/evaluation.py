"""Judges a trained policy on a corpus: ``python -m memscale.policy.evaluation CORPUS POLICY --output FOLDER``.

Compares it with the rules, the widest strategy, the best constant strategy and the oracle, which always takes the best,
on the rows that training never saw: whole families, whole classes of hardware, and a range of pressures. Writes a table
and pictures. Needs the extra ``training``.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from .. import _core
from .artifact import load_policy
from .corpus import scenario_of
from .scenarios import Scenario
from .training import HELD_OUT_CLASSES, HELD_OUT_FAMILIES, HELD_OUT_PRESSURE, WIDEST, Action, Rows, load_rows

__all__ = ["choices_of", "figures", "main"]


def choices_of(rows: Rows, artifact: Path) -> dict[str, np.ndarray]:
    """For each way to choose, the strategies that it takes, as indices into the table.

    The constant strategy is the one of the lowest cost on the rows that are not held out.
    """
    handle, names = load_policy(artifact).handle, [name for name, *_ in _core.policy_tables()[1]]
    named = [(names[first], second) for first, second in rows.actions]
    after_glance = {action: i for i, action in enumerate(named[:WIDEST])}
    without = {action: i for i, action in enumerate(named[WIDEST:], WIDEST)}
    contexts = [[int(value) for value in context] for context in rows.contexts]
    # Where the rules choose what no row tried, the run fits comfortably: every strategy gives the same plan.
    rules = [without.get(_core.policy_choice(None, context)[1:], WIDEST) for context in contexts]
    chosen = [_core.policy_choice(handle, context)[1:] for context in contexts]
    trained = [after_glance.get(action, rule) for action, rule in zip(chosen, rules, strict=True)]
    count = len(rows.rows)
    constant = int(rows.price()[~rows.held_out].mean(axis=0).argmin())
    return {
        "policy": np.array(trained),
        "rules": np.array(rules),
        "widest": np.full(count, WIDEST),
        f"constant: {_name(names, rows.actions[constant])}": np.full(count, constant),
        "oracle": rows.price().argmin(axis=1),
    }


def _name(names: list[str], action: Action) -> str:
    return names[action[0]] + (f" and recompute {action[1] / 1000}" if action[1] else "")


def figures(rows: Rows, choice: np.ndarray, among: np.ndarray) -> dict[str, float]:
    """Judges one way to choose on the rows `among`: mean, 95th percentile and maximum of its regret; how many of its
    choices have no plan though another has, and how many have none for a loop that holds as much; the planner's work
    over the widest strategy's, median and sum."""
    index = np.arange(len(choice))
    regret, work, plans, fits = (a[index, choice][among] for a in (rows.regret, rows.work, rows.plans, rows.fits))
    events = np.array([row["outcomes"][0][4] for row in rows.rows], dtype=np.float64)[among]
    return {
        "rows": int(among.sum()),
        "regret": float(regret.mean()),
        "regret_95": float(np.quantile(regret, 0.95)),
        "regret_most": float(regret.max()),
        "no_plan": int((~plans).sum()),
        "holds_less": int((plans & ~fits).sum()),
        "work_median": float(np.median(work)),
        "work": float((work * events).sum() / events.sum()),
    }


# -- the table --------------------------------------------------------------------------------


def _groups(rows: Rows) -> Iterator[tuple[str, np.ndarray]]:
    """Parts of the rows that training never saw."""
    family = np.array([row["family"] for row in rows.rows])
    kind = np.array([row["class"] for row in rows.rows])
    pressure = rows.column("pressure_permille")
    band = (pressure >= HELD_OUT_PRESSURE[0]) & (pressure < HELD_OUT_PRESSURE[1])
    yield "all held-out rows", rows.held_out
    yield "families " + " and ".join(HELD_OUT_FAMILIES), np.isin(family, HELD_OUT_FAMILIES)
    yield "classes " + " and ".join(HELD_OUT_CLASSES), np.isin(kind, HELD_OUT_CLASSES)
    yield f"pressure {HELD_OUT_PRESSURE[0] / 1000} to {HELD_OUT_PRESSURE[1] / 1000}", band
    for name in sorted(set(family)):
        yield f"family {name}", rows.held_out & (family == name)
    for name in sorted(set(kind)):
        yield f"class {name}", rows.held_out & (kind == name)
    for low, high in ((0, 1000), (1000, 1100), (1100, 1300), (1300, 1500), (1500, 2000), (2000, 10**9)):
        title = f"pressure {low / 1000} to {high / 1000}" if high < 10**9 else f"pressure above {low / 1000}"
        yield f"{title}, held out", rows.held_out & (pressure >= low) & (pressure < high)


def _table(rows: Rows, choices: dict[str, np.ndarray]) -> str:
    lines = []
    for title, among in _groups(rows):
        if not among.any():
            continue
        lines += [f"\n**{title}** ({int(among.sum())} runs)\n"]
        lines += ["| | mean regret | 95% | most | no plan | holds less | planning, median | planning, sum |"]
        lines += ["|---|---|---|---|---|---|---|---|"]
        for name, choice in choices.items():
            f = figures(rows, choice, among)
            regret = " | ".join(f"{100 * f[key]:.2f}%" for key in ("regret", "regret_95", "regret_most"))
            misses, work = f"{f['no_plan']} | {f['holds_less']}", f"{f['work_median']:.3f} | {f['work']:.3f}"
            lines.append(f"| {name} | {regret} | {misses} | {work} |")
    return "\n".join(lines) + "\n"


def planning_times(rows: Rows, artifact: Path, runs: int) -> list[tuple[float, float]]:
    """Seconds of processor time to plan under the policy, decision included, and under the widest strategy, for the
    first `runs` held-out rows. A row of an event is left out: its run can't be drawn again without the event."""
    handle, times = load_policy(artifact).handle, []
    held_out = [row for row, is_held in zip(rows.rows, rows.held_out, strict=True) if is_held and "events" not in row]
    for row in held_out[:runs]:
        scenario = scenario_of(row["seed"], row["index"])
        config = json.loads(scenario.config) | {"auto_policy": True}
        widest = json.dumps(config | {"mode": "aggressive"})

        def by_policy(scenario: Scenario = scenario, config: str = json.dumps(config)) -> object:
            return _core.plan_by_policy(scenario.graph, scenario.hardware, config, handle, False)

        def by_widest(scenario: Scenario = scenario, config: str = widest) -> object:
            return _core.plan_make(scenario.graph, scenario.hardware, config)

        times.append((_time(by_policy), _time(by_widest)))
    return times


def _time(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def decision_us(rows: Rows, artifact: Path) -> float:
    """Microseconds of one decision of the trees, the fastest of many."""
    handle, context = load_policy(artifact).handle, [int(value) for value in rows.contexts[0]]
    fastest = float("inf")
    for _ in range(2000):
        start = time.perf_counter()
        _core.policy_choice(handle, context)
        fastest = min(fastest, time.perf_counter() - start)
    return 1e6 * fastest


# -- pictures ---------------------------------------------------------------------------------


def _draw_pictures(rows: Rows, choices: dict[str, np.ndarray], folder: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "memscale", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot

    names = [name for name in choices if name != "oracle"]
    colours = dict(zip(names, ("#0b62a4", "#cc8800", "#333333", "#9aa5b1"), strict=True))
    groups = [(title, among) for title, among in _groups(rows) if among.any()]
    for file, words in (("families", "family "), ("classes", "class "), ("pressures", "pressure ")):
        shown = [(title, among) for title, among in groups if title.startswith(words)]
        shown = [(t, a) for t, a in shown if words != "pressure " or t.endswith("held out")]
        figure, axes = pyplot.subplots(1, 2, figsize=(9, 0.5 + 0.45 * len(shown)), sharey=True)
        for place, (key, scale, title) in enumerate(
            (("regret", 100.0, "mean regret, %"), ("work_median", 1.0, "planning, of the widest, median"))
        ):
            for offset, name in enumerate(names):
                values = [scale * figures(rows, choices[name], among)[key] for _, among in shown]
                heights = [at + 0.2 * (offset - 1.5) for at in range(len(shown))]
                axes[place].barh(heights, values, 0.18, color=colours[name], label=name)
            axes[place].set_xlabel(title)
        axes[0].set_yticks(range(len(shown)), [t.removeprefix(words).removesuffix(", held out") for t, _ in shown])
        axes[0].invert_yaxis()
        axes[1].legend(loc="lower right", fontsize=7)
        figure.tight_layout()
        figure.savefig(folder / f"policy-{file}.svg", metadata={"Date": None, "Creator": None})
        pyplot.close(figure)


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m memscale.policy.evaluation", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("corpus", type=Path)
    parser.add_argument("policy", type=Path, help="the artifact")
    parser.add_argument("--output", type=Path, help="folder of the pictures")
    parser.add_argument("--time", type=int, default=0, metavar="RUNS", help="also time the planning of so many rows")
    asked = parser.parse_args(arguments)
    rows = load_rows(asked.corpus)
    choices = choices_of(rows, asked.policy)
    print(_table(rows, choices))
    print(f"A decision takes {decision_us(rows, asked.policy):.1f} us.")
    if asked.time > 0:
        times = np.array(planning_times(rows, asked.policy, asked.time))
        ratio = np.median(times[:, 1] / times[:, 0])
        print(
            f"{len(times)} rows planned: {ratio:.2f} times faster at the median, {times.sum(axis=0).round(2)} s in all."
        )
    if asked.output is not None:
        _draw_pictures(rows, choices, asked.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
