"""Chains for `memscale plan --chain`, the program run on them, and judges of its schedules: a
replay of the rules, an integer program and a search without the solver's restriction."""

from __future__ import annotations

import functools
import heapq
import json
import os
import pathlib
import random
import subprocess
import tempfile

import jsonschema
from program_support import program_path as program
from time_limits import HANG_SECONDS

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCHEMA = json.loads((ROOT / "docs" / "formats" / "chain.schema.json").read_text())
ANSWER = jsonschema.Draft202012Validator({**SCHEMA["$defs"]["answer"], "$defs": SCHEMA["$defs"]})
MOST_BYTES = 2**63 - 1  # of a number in a chain, and of a budget
SATURATED = 2**64 - 1  # what a sum that passes 64 bits is printed as


def answer_text(chain, budget, processors=None):
    """What the program prints for a chain, allowed these processors only."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(chain, file)
        file.flush()
        command = [program(), "plan", "--chain", file.name, "--budget", str(budget), "--json"]
        limit = None if processors is None else functools.partial(os.sched_setaffinity, 0, processors)
        done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, preexec_fn=limit)
    assert done.returncode == 0, done.stderr
    return done.stdout


def solve(chain, budget):
    """The answer, its form and numbers checked: a schedule replays to what is printed beside it."""
    answer = json.loads(answer_text(chain, budget))
    ANSWER.validate(answer)
    if answer["feasible"]:
        windows = (answer.get("write_window_bytes", 0), answer.get("read_window_bytes", 0))
        ns, peak = replay(chain, answer["schedule"], *windows)
        assert (answer["makespan_ns"], answer["peak_bytes"]) == (min(ns, SATURATED), peak)
        assert peak <= budget
        assert min(sum(fastest(chain)), SATURATED) <= answer["lower_bound_ns"] <= answer["makespan_ns"]
        if "links" not in chain:
            assert answer["lower_bound_ns"] == min(sum(fastest(chain)), SATURATED)
    return answer


def smallest_budget(chain):
    """The least budget that is feasible."""
    answer = solve(chain, 0)
    return 0 if answer["feasible"] else answer["smallest_budget_bytes"]


def fastest(chain):
    """Nanoseconds of each layer's fastest option, its transfers not counted."""
    return [min(o["fwd_ns"] + o["bwd_ns"] for o in layer["options"]) for layer in chain["layers"]]


def transfer(chain, option):
    """Nanoseconds for what an option moves over a link, one way."""
    rates = {link["name"]: link["bytes_per_s"] for link in chain.get("links", [])}
    return -(-option["link_bytes"] * 10**9 // rates[option["link"]]) if "link" in option else 0


def charged_in_full(chain):
    """The chain without links, its transfers added to the options' times."""
    flat = {**chain, "links": [], "layers": []}
    for layer in chain["layers"]:
        options = []
        for option in layer["options"]:
            plain = {name: value for name, value in option.items() if name not in ("link", "link_bytes")}
            for name in ("fwd_ns", "bwd_ns"):
                plain[name] = min(plain[name] + transfer(chain, option), MOST_BYTES)
            options.append(plain)
        flat["layers"].append({**layer, "options": options})
    return flat


def sizes(chain):
    """Bytes of the activations x_0 to x_L."""
    return [chain["input_bytes"], *(layer["output_bytes"] for layer in chain["layers"])]


class Traffic:
    """What moves over the links of a chain: when each layer's store and fetch end, and what of it is
    in memory."""

    def __init__(self, chain, schedule, write_window, read_window):
        self.chain, self.write_window, self.read_window = chain, write_window, read_window
        self.free, self.stores, self.ahead = {}, {}, {}
        self.wanted = [op["layer"] for op in schedule if op["op"] == "bwd" and "link" in self.option(op)]

    def option(self, operation):
        return self.chain["layers"][operation["layer"]]["options"][operation["option"]]

    def _move(self, option, earliest):
        start = max(self.free.get(option["link"], 0), earliest)
        self.free[option["link"]] = start + transfer(self.chain, option)
        return self.free[option["link"]]

    def bytes(self, now):
        """On their way out, or fetched ahead."""
        return self._leaving(now) + sum(size for _, size in self.ahead.values())

    def _leaving(self, now):
        return sum(size for end, size in self.stores.values() if end > now)

    def store(self, layer, option, now):
        """Gives when compute goes on."""
        self.stores[layer] = (self._move(option, now), option["link_bytes"])
        while self._leaving(now) > self.write_window:
            now = min(end for end, _ in self.stores.values() if end > now)
        return now

    def fetch_ahead(self, saved, now):
        while self.wanted and self.wanted[0] in saved:
            layer = self.wanted[0]
            option = self.chain["layers"][layer]["options"][saved[layer]]
            if sum(size for _, size in self.ahead.values()) + option["link_bytes"] > self.read_window:
                break
            self.wanted.pop(0)
            self.ahead[layer] = (self._move(option, max(now, self.stores[layer][0])), option["link_bytes"])

    def take_back(self, layer, option, now):
        if layer not in self.ahead:
            assert self.wanted.pop(0) == layer
            self.ahead[layer] = (self._move(option, max(now, self.stores[layer][0])), 0)
        return max(now, self.ahead.pop(layer)[0])


def replay(chain, schedule, write_window=0, read_window=0):
    """Nanoseconds and peak bytes of a schedule, by what is in memory after each operation."""
    layers, size = chain["layers"], sizes(chain)
    alone, saved, gradients = {0}, {}, {len(layers)}
    traffic = Traffic(chain, schedule, write_window, read_window)
    now = peak = 0

    def touch(more):
        live = sum(size[n] for n in alone) + sum(size[n] for n in gradients) + traffic.bytes(now)
        live += sum(layers[n]["options"][k]["saved_bytes"] for n, k in saved.items())
        return max(peak, live + more)

    for operation in schedule:
        i = operation["layer"]
        layer = layers[i]
        assert i in alone or i - 1 in saved, f"{operation}: its input is not there"
        traffic.fetch_ahead(saved, now)
        if operation["op"] == "bwd":
            assert saved[i] == operation["option"] and i + 1 in gradients
            option = traffic.option(operation)
            if "link" in option:
                now = traffic.take_back(i, option, now)
                traffic.fetch_ahead(saved, now)
            peak = touch(option["bwd_tmp_bytes"])
            now += option["bwd_ns"]
            gradients = {i}
            del saved[i]
            alone.discard(i)
        elif operation["op"] == "fwd_save":
            assert i not in saved
            option = traffic.option(operation)
            peak = touch(option["saved_bytes"] + option["fwd_tmp_bytes"])
            now += option["fwd_ns"]
            saved[i] = operation["option"]
            now = traffic.store(i, option, now) if "link" in option else now
        else:
            peak = touch(size[i + 1] + layer["fwd_tmp_bytes"])
            now += layer["fwd_ns"]
            if operation["op"] == "fwd_drop":
                alone.remove(i)
            alone.add(i + 1)
    assert gradients == {0} and not saved and not traffic.wanted
    return now, peak


def random_chain(seed, layers, most=10**9, options=3):
    """A chain of layers that all differ. A forward that saves takes as much room as one that does
    not: then the recurrence asks for no room that its schedules do without."""
    generator = random.Random(seed)

    def amount(top=most):
        return generator.randint(0, top)

    size = [amount() for _ in range(layers + 1)]
    chain = {"version": 1, "input_bytes": size[0], "layers": []}
    for i in range(layers):
        forward, tmp = amount(), amount()
        made = []
        for k in range(generator.randint(1, options)):
            saved = size[i + 1] + amount(3 * most)
            made.append(
                {
                    "kind": f"set {k}",
                    "saved_bytes": saved,
                    "fwd_ns": forward,
                    "bwd_ns": amount(),
                    "fwd_tmp_bytes": max(amount(), size[i + 1] + tmp - saved),
                    "bwd_tmp_bytes": size[i] + amount(),
                }
            )
        layer = {"name": f"h.{i}", "output_bytes": size[i + 1], "fwd_ns": forward, "fwd_tmp_bytes": tmp}
        chain["layers"].append({**layer, "options": made})
    return chain


# ---- an integer program ------------------------------------------------------------------------


class Program:
    """The fastest memory-persistent schedule as an integer program, stated by stages and not by
    segments: stage i ends with the backward of layer i, and runs forwards before it from any
    activation that is stored. What a stage stores stays until its own backward.

    `run[i, j, how]`: layer j's forward runs in stage i, `how` being "drop", "ckpt" or an option.
    `bare[i, j]`: x_j is stored by itself when stage i begins. `kept[i, j, k]`: layer j's option k is.
    """

    def __init__(self, chain, budget):
        import highspy

        self.model = highspy.Highs()
        self.model.silent()
        for name in ("mip_rel_gap", "mip_abs_gap"):
            self.model.setOptionValue(name, 0.0)
        self.layers, self.size, self.budget = chain["layers"], sizes(chain), budget
        self.run, self.bare, self.kept, self.costs = {}, {}, {}, []
        for i in reversed(range(len(self.layers))):
            self._declare(i)
        for i in reversed(range(len(self.layers))):
            self._stage(i)

    def _binary(self):
        return self.model.addBinary()

    def _ways(self, j):
        return ["drop", "ckpt", *range(len(self.layers[j]["options"]))]

    def _declare(self, i):
        for j in range(i + 1):
            self.bare[i, j] = self._binary()
            for k in range(len(self.layers[j]["options"])):
                self.kept[i, j, k] = self._binary()
            for how in self._ways(j):
                self.run[i, j, how] = self._binary()

    def _saved_before(self, i, j):
        return sum(self.kept[i, j, k] for k in range(len(self.layers[j]["options"])))

    def _ran(self, i, j):
        return sum(self.run[i, j, how] for how in self._ways(j))

    def _made(self, i, j):
        """Whether stage i makes x_j by itself."""
        return self.run[i, j - 1, "drop"] + self.run[i, j - 1, "ckpt"] if j > 0 else 0

    def _stage(self, i):
        add = self.model.addConstr
        if i == len(self.layers) - 1:  # the first: nothing is stored but x_0
            for j in range(i + 1):
                add(self.bare[i, j] == int(j == 0))
                add(self._saved_before(i, j) == 0)
        for j in range(i + 1):
            add(self._ran(i, j) + self._saved_before(i, j) <= 1)
            add(self.run[i, j, "drop"] <= self._made(i, j))  # what is stored stays
            if j > 0:
                held = self.bare[i, j] + self._saved_before(i, j - 1)
                add(self._ran(i, j) <= self._ran(i, j - 1) + held)
                add(self._ran(i, j - 1) <= self._ran(i, j))
                add(self._made(i, j) + self.bare[i, j] <= 1)
            else:
                add(self.bare[i, j] == 1)
        saves = sum(self.run[i, i, k] for k in range(len(self.layers[i]["options"])))
        add(saves + self._saved_before(i, i) == 1)
        self._fit(i)
        self._store(i)
        for j in range(i + 1):
            for how in self._ways(j):
                ns = self.layers[j]["options"][how]["fwd_ns"] if isinstance(how, int) else self.layers[j]["fwd_ns"]
                self.costs.append(ns * self.run[i, j, how])

    def _kept_after(self, i, j):
        """What of x_j and of layer j is stored once stage i has run its forward."""
        bare = self.bare[i, j] + self._made(i, j) - self.run[i, j, "drop"]
        return bare, [self.kept[i, j, k] + self.run[i, j, k] for k in range(len(self.layers[j]["options"]))]

    def _fit(self, i):
        live = self.size[i + 1]  # the gradient
        for j in range(i + 1):
            live += self.size[j] * self.bare[i, j]
            for k, option in enumerate(self.layers[j]["options"]):
                live += option["saved_bytes"] * self.kept[i, j, k]
        for j in range(i + 1):
            layer, need = self.layers[j], self.size[j] * self._made(i, j)
            for how in self._ways(j):
                option = layer["options"][how] if isinstance(how, int) else None
                room = (
                    option["saved_bytes"] + option["fwd_tmp_bytes"]
                    if option
                    else self.size[j + 1] + layer["fwd_tmp_bytes"]
                )
                need += room * self.run[i, j, how]
            self.model.addConstr(live + need <= self.budget)
            live += self.size[j] * (self._made(i, j) - self.run[i, j, "drop"])
            for k, option in enumerate(layer["options"]):
                live += option["saved_bytes"] * self.run[i, j, k]
        _, saved = self._kept_after(i, i)
        for k, option in enumerate(self.layers[i]["options"]):
            live += option["bwd_tmp_bytes"] * saved[k]
            self.costs.append(option["bwd_ns"] * saved[k])
        self.model.addConstr(live <= self.budget)

    def _store(self, i):
        for j in range(i):
            bare, saved = self._kept_after(i, j)
            self.model.addConstr(self.bare[i - 1, j] == bare)
            for k, one in enumerate(saved):
                self.model.addConstr(self.kept[i - 1, j, k] == one)

    def least_ns(self):
        """Its makespan; None where there is no schedule."""
        import highspy

        self.model.minimize(sum(self.costs))
        if self.model.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        return round(self.model.getInfo().objective_function_value)


# ---- a search without the restriction ----------------------------------------------------------


def unrestricted_ns(chain, budget):
    """Nanoseconds of the fastest schedule that may free anything at any time and make it again;
    None where there is none. Dijkstra's search over what is in memory between operations: the next
    layer to go backward, the activations by themselves, the layers saved and how."""
    layers, size = chain["layers"], sizes(chain)
    start = (len(layers) - 1, frozenset([0]), frozenset())
    best, queue = {start: 0}, [(0, 0, start)]
    count = 0
    while queue:
        ns, _, state = heapq.heappop(queue)
        if ns > best[state]:
            continue
        if state[0] < 0:
            return ns
        for took, after in _moves(layers, size, budget, state):
            if ns + took < best.get(after, float("inf")):
                best[after] = ns + took
                count += 1
                heapq.heappush(queue, (ns + took, count, after))
    return None


def _moves(layers, size, budget, state):
    target, alone, saved = state
    room = budget - size[target + 1] - sum(size[n] for n in alone)
    room -= sum(layers[n]["options"][k]["saved_bytes"] for n, k in saved)
    held = dict(saved)
    for n in alone - {0}:  # the input is the caller's
        yield 0, (target, alone - {n}, saved)
    for n, k in saved:
        yield 0, (target, alone, saved - {(n, k)})
    for i in range(target + 1):
        if i not in alone and i - 1 not in held:
            continue
        if i in held:
            option = layers[i]["options"][held[i]]
            if i == target and option["bwd_tmp_bytes"] <= room:
                left = frozenset((n, k) for n, k in saved if n < i)
                yield option["bwd_ns"], (i - 1, frozenset(n for n in alone if n < i), left)
            continue
        for k, option in enumerate(layers[i]["options"]):
            if option["saved_bytes"] + option["fwd_tmp_bytes"] <= room:
                yield option["fwd_ns"], (target, alone, saved | {(i, k)})
        if i < target and i + 1 not in alone and size[i + 1] + layers[i]["fwd_tmp_bytes"] <= room:
            yield layers[i]["fwd_ns"], (target, alone | {i + 1}, saved)
