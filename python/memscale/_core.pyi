# Written by scripts/core_stubs.py from the docstrings in ext/; change those and run it again.
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

import torch

ADAMW_BF16_MASTER: int

ADAMW_BF16_SPLIT: int

ADAMW_BLOCK: int

ADAMW_FP32: int

class DeviceFirst:
    """A __torch_dispatch__ that tells devices itself."""

class Execution:
    """Executes plans on one model; `replay` replays a layer for the saved tensors that its region is missing. If the
    model lies on several devices, `model` is a number that its executions share, one for each device.
    """

    def __init__(self, replay: Callable[[Undo, Region], None], model: int = 0, /) -> None:
        ...
    def add_layer(self, name: str, /) -> int:
        """Adds a layer; returns its number."""
    def add_residents(self, tensors: list[torch.Tensor], /) -> None:
        """Adds to what set_residents() set: parameters that FSDP has gathered for a layer."""
    def backward_begins(self) -> None:
        """Reports the start of a backward, if hooks of layers can't see it."""
    def backward_ended(self) -> None:
        """Reports the end of a backward."""
    def backward_reached(self, parameters: bool, /) -> None:
        """Reports whether the backward that ended changed gradients or followed a change of parameters."""
    def boundary(self, is_optimizer: bool, is_another: bool = False, /) -> dict[str, int] | None:
        """Measurements of the step, if one ended: step, step_ns, plan_steps, and those known of peak_bytes,
        peak_held_bytes, resident_bytes and held_bytes of the process.
        """
    def count_replan(self) -> None:
        """Counts one more plan after the first."""
    def counters(self) -> dict[str, int]:
        """Counters by name."""
    def device_peak(self, mark_bytes: int | None, /) -> None:
        """Reports the peak of the training GPU's allocator, before a boundary; None on the CPU."""
    def enter(self, layer: int, is_replayable: bool, caller: FrameType | list[int] | None, /) -> Region | str | None:
        """Begins a call of a layer. None: the call needs no hooks. A str of hooks_in_the_way(): none can be pushed."""
    def enter_root(self, caller: FrameType | list[int] | None, /) -> bool:
        """Begins a forward, called by this Python frame or that at this address. True if an earlier one was
        interrupted.
        """
    def evaluation_begins(self) -> None:
        """Begins forwards without gradients; their peak does not count for the step."""
    def evaluation_ends(self) -> tuple[int, int] | None:
        """Resident bytes before the evaluation and at its peak; None if no evaluation has begun."""
    def expect_backward(self) -> bool:
        """Announces a backward_begins() for the forward that just ended. False: that call is not needed."""
    def forward_begins(self, known_bytes: int, state_bytes: int, /) -> tuple[int, int]:
        """Bytes of maps beyond those of earlier steps; waiting forwards."""
    def held_layers(self) -> list[str]:
        """Layers that hold() or a failed comparison stopped recomputing."""
    def hold(self, layer: int, /) -> None:
        """Stops recomputing the layer."""
    def hooks_in_the_way(self) -> str | None:
        """Removes our stale hooks and returns None if hooks can be pushed, else why not: "foreign", "wrapped" (an
        execution around this one has hooks) or "disabled".
        """
    def in_root(self) -> bool:
        """Whether this thread is in a forward."""
    def is_active(self) -> bool:
        """Whether the plan does anything."""
    def is_resident(self, tensor: torch.Tensor, /) -> bool:
        """Whether the tensor's storage is one that set_residents() set."""
    def leave(self, caller: FrameType | list[int] | None, /) -> None:
        """Ends the call; `caller` is the root's frame, or None."""
    def leave_root(self, failed: bool, /) -> None:
        """Ends the forward."""
    def open_tier(
        self,
        host_cap_bytes: int,
        disk_cap_bytes: int,
        dir: str | None = None,
        slab_bytes: int = 0,
        pinned_gb: float = 0.0,
        stream_count: int = 0,
        write_bytes_per_s: int = 0,
        read_bytes_per_s: int = 0,
        pageable_bytes_per_s: tuple[int, int] = (0, 0),
    ) -> None:
        """Opens the lower tier of set_device()'s device with a plan's caps. Opens nothing if both caps are 0. Raises
        OffloadError.
        """
    def peek(self, layer: int, /) -> Technique:
        """The technique of the layer's next call."""
    def poll(self) -> None:
        """Releases storages and transfers that nothing needs any more; never waits."""
    def set_began(self, call: Callable[[], None] | None, /) -> None:
        """Sets the function to call at the first unpack of a backward."""
    def set_device(self, kind: str, index: int, bits: Callable[[torch.UntypedStorage], Any], /) -> None:
        """Says which device the model is on (initially the CPU), before open_tier(). `bits` makes bits of a mask."""
    def set_observer(self, call: Callable[[torch.Tensor], Any] | None, /) -> None:
        """Sets the function to call with each tensor saved in a region. It returns a token, which lives as long as the
        handle; every unpack calls the token's unpacked(), and its given() with the tensor or None.
        """
    def set_overlap(self, wanted: bool, /) -> None:
        """Sets whether a GPU's transfers overlap the computation."""
    def set_packing(self, wanted: bool, /) -> None:
        """Sets whether two-valued saved tensors become bits in memory; initially true."""
    def set_plan(self, json: str | None, /) -> None:
        """Follows this plan from the next forward on; None keeps everything. MemScaleError if it is malformed."""
    def set_residents(self, tensors: list[torch.Tensor], /) -> None:
        """Sets the tensors whose storages never move."""
    def stats(self) -> dict[str, Any]:
        """Counts and bytes of the objects that are live now."""
    def tier(self) -> str | None:
        """One line about the lower tier; None if it is not open."""

class GeneratorMemory:
    """The memory in which a random generator keeps its state."""
    def read(self) -> Any:
        """What lies in the places, with what `get` returns if it was given; the object of the last read if nothing has
        changed.
        """
    def write(self, state: Any, /) -> None:
        """Puts back what read() returned, with the lock held, or by `set`; nothing is done if nothing has changed."""

class Inventory:
    """Takes the state that a replay needs, and sets it."""
    def enter(self, undo: Undo, moment: tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...], bool], /) -> bool:
        """Sets the settings and random states of a moment, each unless it is set already, and enables grad mode. The
        undo puts the present ones back, even if the layer changes them meanwhile; if no modes are on now, nor were
        then, it takes off those that are on by then. Returns whether that was all: the caller puts modes on or off,
        counts a level of autocast, and allows saved-tensor hooks.
        """
    def take(self) -> tuple[tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...], bool], Any]:
        """A moment, for enter(), and a copy of the context variables. The moment has settings, sources of random
        numbers, their states, and whether any mode of torch is on.
        """

OPTIMIZER_HOST_BUFFERS: int

OPTIMIZER_HOST_BUFFER_BYTES: int

class OptimizerStream:
    """Optimizer state on disk. Raises OffloadError if a read or write fails, ConfigError if the directory or cap is
    unfit.
    """

    def __init__(self, dir: str | None = None, cap_gb: float | None = None) -> None:
        ...
    def add(self, weights: int, moments: int, has_max_exp_avg_sq: bool, count: int, /) -> int:
        """Adds a new state; returns its id."""
    def begin(self, ids: list[int], /) -> None:
        """Begins a round of updates, expected in this order."""
    def description(self) -> str:
        """One line on the file's I/O."""
    def dir(self) -> str:
        """The file's directory."""
    def end(self) -> None:
        """Waits for writes; raises the first failure of the round."""
    def export(self, id: int, fd: int, offsets: tuple[int | None, ...], /) -> None:
        """Writes the arrays into a file; offsets in the order of part_bytes(), None: skip the array."""
    def is_inherited(self) -> bool:
        """Whether the parent process opened the stream, so that it is unusable here."""
    def part_bytes(self, id: int, /) -> tuple[int, ...]:
        """Bytes of exp_avg, exp_avg_sq, max_exp_avg_sq, extra, exp_avg_absmax, exp_avg_sq_absmax; 0 for arrays that
        the state lacks.
        """
    def put(self, id: int, tensor: tuple[int, ...], /) -> None:
        """Replaces the state with one in memory; `tensor` as for adamw_step()."""
    def remove(self, id: int, /) -> None:
        """Removes the state."""
    def set_buffers(self, bytes: int, /) -> None:
        """Sets the bytes of the buffers that states pass through; 0: as few as possible."""
    def stats(self) -> dict[str, int]:
        """Keys: disk_bytes, resident_bytes, peak_resident_bytes, written_bytes, read_bytes, stall_ns."""
    def update(
        self,
        id: int,
        tensor: tuple[int, ...],
        lr: float,
        beta1: float,
        beta2: float,
        eps: float,
        weight_decay: float,
        grad_scale: float,
        maximize: bool,
        threads: int,
        /,
    ) -> None:
        """Updates one tensor as adamw_step() does; ignores the state's addresses."""
    def update_by(self, id: int, step: int, function: Callable[[int, tuple[memoryview, ...]], object], /) -> None:
        """Updates one state of 32-bit moments by a function of the first element and views of a stretch's moments,
        which end with its call. A stretch whose function raises is left as it was.
        """

class Region:
    """One call of a layer, from its forward until its saved tensors are gone."""
    def abandon_replay(self) -> None:
        """Stops capturing if end_replay() did not; discards the tensors captured."""
    def begin_replay(self, whole: bool, /) -> None:
        """Starts to capture the tensors that the layer saves; with `whole`, ReplayStop never ends the replay early."""
    call: int
    """Number of this call in its forward, from 0."""
    def end_replay(self, failed: bool, /) -> None:
        """Stops capturing; raises IntegrationError if the layer saved too little."""
    is_running: bool
    """Whether the layer's call is still under way."""
    layer: str
    """Qualified name of the layer; "" for the root's own work."""
    missing: int
    """Number of saved tensors that a replay would have to recompute."""
    def offload_input(self, tensor: torch.Tensor, /) -> Saved | None:
        """Sends the tensor to the lower tier and returns a handle; None if the tensor must stay."""
    payload: Any
    """Any object that the replay needs."""
    technique: Technique
    """The technique of this call."""

class ReplayStop(BaseException):
    """Ends a replay early: everything that backward needs exists."""

class Saved:
    """A handle that autograd holds in place of one saved tensor."""
    def drop(self, ticket: Any, /) -> None:
        """Releases the tensor's bytes; the ticket's give() recomputes them."""
    def unpack(self) -> torch.Tensor:
        """The saved tensor."""

class Settings:
    """A table of the process's settings."""
    def plain_rows(self) -> list[int]:
        """The rows that have no probes in this torch."""
    def read(self) -> tuple[Any, ...]:
        """The value of each setting; the object of an earlier read if nothing has changed. Ellipsis stands for a
        setting whose reader raises RuntimeError.
        """

class Snapshot:
    """The plain state of modules before one call; see take_snapshot()."""
    def bind_parameters(self, undo: Undo, /) -> str | None:
        """Binds the parameters of the call again; the undo restores the present ones. The name of the first that was
        written since, None if none was.
        """
    def put_attributes(self) -> None:
        """Sets the scalars that differ, and removes attributes and buffers that came later. The Undo must have a note
        of the modules.
        """

TECHNIQUES: dict[str, Technique]

class Technique(NamedTuple):
    """A row of the table in memscale/technique.h."""

    name: str
    """The technique's name in documents."""
    replays: bool
    """The whole layer runs again in backward."""
    set: int
    """The set of saved tensors that single operators recompute; 0: none."""
    nesting: int
    """The depth of nested runs at which its first argument is recomputed; 0: not recomputed."""
    is_chained: bool
    """The previous layers recompute its first argument."""
    moves_input: bool
    """The layer's arguments go to a lower tier until backward."""

class Trace:
    """Turns the events of one step into a graph. If the model lies on several devices, the storages of one are
    reported.
    """

    def __init__(
        self,
        model: str,
        signature: str,
        source: str,
        threads: int = 1,
        on_several_devices: bool = False,
        /,
    ) -> None:
        ...
    def adds(self, key: int, other: int, /) -> None:
        """Reports that the storage born next is autograd's sum of these gradients."""
    def born(self, key: int, bytes: int, /) -> None:
        """Reports a new storage."""
    def current(self) -> int:
        """The node of the last event of forward."""
    def died(self, key: int, /) -> None:
        """Reports that a storage, or a copy given to unpacked(), was freed."""
    def dropped(self, node: int, serial: int, /) -> None:
        """Reports that autograd released a saved tensor."""
    def enter(self, name: str, call: int, /) -> int:
        """Begins a layer's call; returns its node."""
    def expect_adamw(self, elements: int, bits: int, is_split: bool, /) -> None:
        """Reports that memscale's AdamW, which is not traced, will have the state of a parameter, with moments of
        these bits, and its low bits if it is split.
        """
    def final(self, key: int, /) -> None:
        """Reports in backward that this gradient is complete."""
    def finish(self) -> str:
        """Ends the trace; returns the graph as JSON."""
    def flag(self, node: int, name: str, /) -> None:
        """Sets a flag of a node."""
    def gradient(self, key: int, bytes: int, /) -> None:
        """Reports the gradient of a parameter."""
    def gradients_needed(self) -> None:
        """Reports that a step needs all gradients at once."""
    def head(self, key: int, /) -> int:
        """Marks a linear layer that just made possible logits; returns its number, 0 if it can't be marked."""
    def head_backward(self, head: int, /) -> None:
        """Begins the linear layer's backward: the gradient of its output exists."""
    def head_backward_end(self, head: int, key: int, /) -> None:
        """Ends the linear layer's backward; `key` is the gradient of its input."""
    def head_used(self, head: int, loss: int, /) -> None:
        """Confirms that only this cross entropy reads the linear layer's output."""
    def input(self, key: int, /) -> int:
        """Reports a tensor argument of the open layer; its storage's place among the inputs, -1 if none."""
    def leave(self) -> None:
        """Ends the layer's call."""
    def live_bytes(self) -> int:
        """Bytes live now, without residents."""
    def loss(self, key: int, /) -> int:
        """Begins a cross entropy of these logits; returns its number, 0 if it can't be marked."""
    def loss_backward(self, head: int, /) -> None:
        """Begins that loss's backward."""
    def loss_backward_end(self, head: int, key: int, /) -> None:
        """Ends the cross entropy's backward; `key` is the gradient of the logits."""
    def loss_end(self, head: int, /) -> None:
        """Ends the cross entropy of this number."""
    def loss_outside(self) -> None:
        """Reports that the caller computes the loss outside the model."""
    def made(self, inputs: tuple[int, ...], outputs: tuple[int, ...], runs_again: bool, /) -> None:
        """Reports the storages that the last operator read and made, and whether it can run again."""
    def made_state(self, bytes: int, /) -> None:
        """Reports that these bytes of the optimizer's state exist before the step."""
    def moves(self, bytes: int, /) -> None:
        """Reports that the next operator copies these bytes from another device."""
    def op(self, name: str, inputs: tuple[Any, ...], outputs: tuple[Any, ...], copied: int | None = None, /) -> None:
        """Reports an operator; operands are tuples (shape, bytes[, elements]). If `copied` is a number, the operator
        ran on a CPU and may have allocated a workspace; bit i says that it copied input i first.
        """
    def optimizer_unknown(self) -> None:
        """Discards the optimizer's step, which failed under the trace; begins the phase done."""
    def output(self, key: int, bytes: int, /) -> None:
        """Reports a storage that the root returned."""
    def own_optimizer(self, stream_bytes: int, released: bool, streamed: bool, /) -> None:
        """Reports memscale's optimizer, by its owner's wish `released` in backward, `streamed` from disk."""
    def peak_bytes(self) -> int:
        """The most live bytes in this phase."""
    def phase(self, name: str, /) -> None:
        """Begins a phase: forward, loss, backward, optimizer or done."""
    def resident(self, key: int, bytes: int, item_bytes: int, role: str, trainable: bool, /) -> None:
        """Reports a storage that exists before the step; role: parameter, buffer or batch."""
    def saved(self, key: int, /) -> tuple[int, int]:
        """Reports that autograd saved a tensor; returns its node and serial."""
    def unpacked(self, node: int, serial: int, copy_key: int, /) -> None:
        """Reports an unpack; `copy_key` is the storage that replaced it, or 0."""
    def untouched(self, key: int, bytes: int, /) -> None:
        """Reports bytes of the storage that its operator allocated and never touched."""
    def wrote(self, key: int, /) -> None:
        """Reports that an operator wrote to a storage that existed before it."""

class Undo:
    """Notes of the changes that guarded() undoes when it ends."""
    def content(self, container: object, /) -> None:
        """Notes what a container or memory holds, as content() does; the undo restores it in place."""
    def hold(self, lock: object, /) -> None:
        """Takes the lock; the undo releases it."""
    def hooks(self) -> None:
        """The undo pops saved-tensor hooks that are pushed from now on."""
    def later(self, function: Callable[..., object], /, *args: Any) -> None:
        """The undo calls this function, a builtin, with these arguments."""
    def own_hooks(self) -> None:
        """Until the undo, autograd holds saved tensors without their graph."""
    def signals(self) -> None:
        """Until the undo, signals that Python handles wait; let_signals_in() lets those in that have come. On a thread
        that runs no handlers it does nothing.
        """
    def slot(self, holder: object, key: object, /) -> None:
        """Notes a dictionary's item or an object's attribute; the undo restores it, or deletes it if it is missing
        now.
        """

def adamw_dequantize(values: int, codes: int, absmax: int, count: int, is_signed: bool, /) -> None:
    """Decodes codes to fp32 values; arguments as for adamw_quantize."""

def adamw_map(is_signed: bool, /) -> list[float]:
    """The 256 values that codes stand for."""

def adamw_moments_bits(elements: int, bits: int, /) -> int:
    """Bits of the moments for a tensor of this size: 8 or 32."""

def adamw_quantize(values: int, codes: int, absmax: int, count: int, is_signed: bool, /) -> None:
    """Encodes fp32 values. The first three arguments are addresses; `absmax` has the blocks' scales."""

def adamw_step(
    tensors: list[tuple[int, ...]],
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    grad_scale: float,
    maximize: bool,
    threads: int,
    /,
) -> None:
    """Updates the tensors once. A tensor is a tuple of int: weights (0 fp32, 1 bf16 with a master, 2 bf16 split),
    moments (0 fp32, 1 8-bit), count, step, then addresses (0: none) of parameter, gradient, extra, exp_avg,
    exp_avg_sq, max_exp_avg_sq, exp_avg_absmax, exp_avg_sq_absmax.
    """

def are_modes_on() -> bool:
    """Whether this thread has any mode of torch on."""

def batch_search_best(search: object, /) -> tuple[int, int]:
    """Batch and accumulation: the largest that fitted, 0 if none did."""

def batch_search_new(most: int, effective: int, guess: int, trials: int, /) -> object:
    """A search for the largest batch that fits. With `effective` above 0, only its divisors."""

def batch_search_next(search: object, /) -> int:
    """The batch to try; 0 ends the search."""

def batch_search_report(search: object, fits: bool, /) -> None:
    """Reports whether the tried batch fits."""

def checkpoint_read(path: str, /) -> list[tuple[str, str, tuple[int, ...], int, int]]:
    """Name, type, shape, first byte and bytes of each tensor of a safetensors file."""

def config_defaults() -> str:
    """JSON of the default config."""

def config_in_parts(config: str, /) -> str:
    """The config restricted to techniques that work with layers that are divided among ranks."""

def config_no_argument(function: str, name: str, arguments: tuple[str, ...], /) -> str:
    """The message for an argument that a function does not have; `arguments` are its own."""

def config_validate(json: str, /) -> str:
    """The config with every field written out. Raises ConfigError."""

def content(container: object, /) -> Any:
    """A copy of what a list, dictionary, set, deque, bytearray, array or number of C's holds."""

def counter_metrics() -> list[tuple[str, str, str, int]]:
    """The name of each counter, its metric's name and help text, and the divisor that converts its value to the
    metric's unit.
    """

def device_check(name: str, /) -> None:
    """Raises MemScaleError if the kind of device is unknown."""

def device_first(operator: object, kind: type, dispatch: Callable[..., Any], /) -> Any:
    """A method `__torch_dispatch__` that answers `operator` for a tensor of type `kind` with its attribute
    fake_device, without bytecode, and calls `dispatch` for all else.
    """

def device_kinds() -> tuple[dict[str, Any], ...]:
    """The name, label, api, host_is_device and torch_module of each kind of device, the host's first."""

def disk_probe(dir: str, /) -> str:
    """JSON of a directory for the disk tier, which is created if missing. Raises ConfigError if it is unfit."""

def error_table() -> list[tuple[int, str, str, str]]:
    """Code, name, exception class and text of each error."""

def fault_arm(kind: str, nth: int, errno: int = 0, /) -> None:
    """Makes the nth call from now on fail, for tests. Kinds: alloc, map, open, write, read, short, flip, thread,
    driver, system.
    """

def fault_disarm_all() -> None:
    """Disarms all fault points."""

def fault_passed(kind: str, /) -> int:
    """Number of calls of this kind since it was armed."""

def float_control() -> int:
    """The processor's bits for this thread: how it rounds, and whether it flushes denormals."""

def generator_memory(
    places: tuple[tuple[object, int, int], ...],
    lock: Any = None,
    get: Any = None,
    set: Any = None,
    /,
) -> GeneratorMemory:
    """The memory of a random generator: tuples of the object that owns it, its address and its bytes. `lock` is held
    to write, unless it is None. If `get` and `set` are given, they read and set the state, and the memory only
    tells whether it has changed. The caller vouches for the addresses.
    """

def gpu_trial_next(trial: int, room_bytes: int, size: int, repeats: int, ns: int, /) -> tuple[int, int, int]:
    """Size and repeats of the next try after one that took `ns`; all three are 0 at first. No repeats: the trial has
    ended, and the third number is its rate, or 0.
    """

def gpu_trials() -> list[tuple[str, str, bool]]:
    """Work, dtype and whether host memory is pinned, of each trial that finds a rate of a GPU."""

def graph_add_tiled(graph: str, tiled: str, /) -> str:
    """The graph with the tiled programs of the same layers in `tiled`, a graph traced in tiles, if the two match."""

def graph_adopt_loop(graph: str, other: str, /) -> str:
    """The graph with the other's observations of the training loop."""

def graph_check(json: str, /) -> None:
    """Raises MemScaleError if the document is not a sound graph."""

def graph_hold(graph: str, layers: list[str], /) -> str:
    """The graph with these layers marked as not repeatable."""

def graph_measure(
    graph: str,
    calls: list[tuple[str, int, list[int], list[int], list[int], int, int, int, int, int]],
    on_host: bool,
    /,
) -> str:
    """The graph with what calls of compiled layers were seen to do: layer, call, saved arguments' places, bytes of
    saved outputs and of other saved storages, live bytes, peaks and times of both passes.
    """

def graph_pend(graph: str, forwards: int, /) -> str:
    """The graph of a step in which this many forwards, or more, wait for their backward while another runs."""

def graph_shard(
    graph: str,
    hardware: str,
    copies: int,
    how: tuple[bool, bool, bool],
    held_bytes: int,
    /,
) -> tuple[str, str, int]:
    """Graph and hardware of one rank of those that FSDP divides a model among, and the bytes that it gathers;
    `held_bytes`: those that the hardware counts already.
    """

def guarded(function: Callable[..., Any], /, *args: Any) -> Any:
    """Calls function(undo, *args). Then undoes the changes noted in the Undo, exception or not, in one call that
    nothing can interrupt.
    """

def guards_hold(guards: tuple[tuple[Any, str, Any], ...], /) -> bool:
    """Whether each dictionary, or object, still has this object under this name; None stands for a missing item of a
    dictionary.
    """

def hardware_begins(hardware: str, counted_bytes: int, /) -> str:
    """The description at the first forward, less what was freed since the wrap. The baseline counts `counted_bytes` of
    the maps.
    """

def hardware_check(json: str, /) -> str:
    """The description as the library writes it. Raises MemScaleError if it is invalid."""

def hardware_grow_by(hardware: str, before: int, after: int, /) -> str:
    """The description with the baseline grown by what memory beside tensors has grown."""

def hardware_grow_process(hardware: str, expected_bytes: int, allocated_bytes: int, /) -> str:
    """The description with this process's present baseline and `expected_bytes` that it will also hold. On a GPU,
    where `allocated_bytes` are allocated now, the baseline grows by no more than these.
    """

def hardware_load_gpu_rates(hardware: str, gpu: int, key: str, /) -> str | None:
    """The description with the cached rates of a GPU; None if the cache has none."""

def hardware_probe(
    disk_dir: str | None = None,
    cache_dir: str | None = None,
    no_cache: bool = False,
    no_measure: bool = False,
    no_gpus: bool = False,
) -> str:
    """JSON of this machine; with no_gpus no driver is asked. Raises ConfigError if disk_dir is unfit for the disk
    tier.
    """

def hardware_set_gpu_rates(hardware: str, gpu: int, key: str, rates: list[int], /) -> str:
    """The description with measured rates, one for each trial, which the cache keeps if none is 0."""

def hardware_set_process(
    hardware: str,
    kind: str,
    index: int,
    name: str,
    total_bytes: int,
    available_bytes: int,
    allocated_bytes: int,
    state_bytes: int,
    /,
) -> str:
    """Adds this process's baseline on the device to the description: allocated_bytes on a GPU, the measured resident
    memory on the CPU; state_bytes of it are the optimizers' state. The GPU's name and bytes are those that torch
    reports; they are ignored for the CPU. MemScaleError if the kind is unknown.
    """

def hardware_shrink_by(hardware: str, bytes: int, /) -> str:
    """The description without these bytes in the baseline, which counts them no longer."""

def hardware_traced(hardware: str, /) -> str:
    """The description with the baseline after the first trace."""

def heap_bytes(address: int, /) -> int:
    """The bytes of the block of memory that malloc() returned this address for."""

def history_add(history: object, step: dict[str, Any], counters: dict[str, int], /) -> None:
    """Adds a step's measurements, and the counters after it."""

def history_new() -> object:
    """An empty history of steps."""

def history_step_times(history: object, /) -> tuple[list[tuple[int | None, int]], int]:
    """The upper bounds of step times in ns (None for the last) with counts of steps, and the sum in ns."""

def hostmem_ceiling(
    plan_bytes: int,
    budget_bytes: int,
    last: tuple[int, int],
    before: tuple[int, int],
    smaller_inputs: bool,
    /,
) -> int:
    """The next step's ceiling, by the plan's and by what the last two steps needed beside maps. A step is (peak bytes,
    peak of held bytes).
    """

def hostmem_find(address: int, /) -> tuple[int, int, int] | None:
    """Start, bytes in whole pages and serial of the live block that holds the address."""

def hostmem_install(library: str | None = None) -> str:
    """Takes the allocator's slots of the loaded library (None: torch's libc10.so) for one more user. Returns the
    means: "slots", "mallopt" or "none".
    """

def hostmem_reset_peak() -> None:
    """Restarts both peaks at the current values."""

def hostmem_set_ceiling(ceiling_bytes: int, /) -> None:
    """Bounds live plus cached bytes; trims at once."""

def hostmem_stats() -> dict[str, Any]:
    """Keys: means, live_bytes, peak_live_bytes, cached_bytes, peak_held_bytes, live_blocks, mapped_count,
    reused_count.
    """

def hostmem_trim(keep: int = 0, libc: bool = True) -> None:
    """Releases cached maps down to `keep` bytes, and glibc's free memory if `libc`."""

def hostmem_uninstall() -> None:
    """Removes one user; the last one restores the slots. Live blocks stay valid."""

def hostmem_untouched(address: int, bytes: int, /) -> int:
    """Bytes of the range's whole pages that are not resident."""

def inventory(
    settings: Settings,
    generators: Any,
    end_modes: Callable[[], object],
    copy_context: Callable[[], Any],
    /,
) -> Inventory:
    """The inventory of a table of settings and of `generators`, which has `sources` for read_states(), `guards` for
    guards_hold(), and a method look() that finds both again once the guards don't hold. `end_modes` is a builtin
    that takes all modes of torch off.
    """

def leave_inventory(
    inventory: Inventory,
    values: tuple[Any, ...],
    sources: tuple[Any, ...],
    states: tuple[Any, ...],
    is_grad_enabled: bool,
    ends_modes: bool,
    /,
) -> None:
    """Puts settings, random states and grad mode back and ends modes; for Inventory.enter()."""

def let_signals_in() -> None:
    """Runs the handlers of signals that Undo.signals() holds back. Raises what they raise."""

def log_drain() -> list[tuple[int, str]]:
    """Level (0 debug to 3 error) and text of the lines written since the last call."""

def loss_backward(
    logits: int,
    rows: int,
    vocabulary: int,
    classes: int,
    largest: int,
    log_sum: int,
    lanes: int,
    threads: int,
    by_picked: int,
    gradient: int,
    /,
) -> None:
    """Computes the gradient of the logits. Arguments as for loss_forward(); `gradient` may be `logits`."""

def loss_chunk_rows(tokens: int, vocabulary: int, item_bytes: int, threads: int, on_device: bool, /) -> int:
    """The number of rows in a chunk of logits, which are on a GPU or in host memory."""

def loss_forward(
    logits: int,
    rows: int,
    vocabulary: int,
    classes: int,
    largest: int,
    log_sum: int,
    lanes: int,
    threads: int,
    picked: int,
    unused: int,
    /,
) -> None:
    """Computes the log-softmax of each row's class. Takes addresses of fp32 rows, int64 classes and fp32 results per
    row.
    """

def loss_lanes(capability: str, vocabulary: int, /) -> int:
    """Lanes of torch's vectors if loss_forward() and loss_backward() give the same bits as torch, else 0."""

def loss_scale_default() -> tuple[float, int]:
    """The initial loss scale and count of finite steps."""

def loss_scale_update(scale: float, finite_steps: int, is_finite: bool, /) -> tuple[float, int]:
    """The loss scale and count of finite steps after an optimizer's step."""

def map_bytes(tensors: list[torch.Tensor], /) -> int:
    """Bytes of hostmem's maps that hold the tensors."""

def memory_beside_tensors() -> int:
    """Resident bytes of this process beside its tensors."""

def memory_live() -> tuple[int, int]:
    """Bytes and blocks of memory that the library has allocated."""

def module_list(root: Any, /) -> list[Any]:
    """The module `root` and those below it, in torch's order, each once. TypeError if one keeps its children in
    anything but a dict.
    """

def module_tensors(root: Any, with_buffers: bool, /) -> list[Any]:
    """The parameters of the module `root` and of those below it, in torch's order, each once; with their buffers, if
    asked for. TypeError if one keeps them in anything but dicts.
    """

def note_modules(
    undo: Undo,
    modules: list[Any],
    quiet: set[type],
    is_container: Callable[[Any], bool],
    is_open: Callable[[Any, set[type]], bool],
    /,
) -> None:
    """Lets the Undo restore the attributes of modules, what containers among them hold, and what plain objects among
    them hold; containers two deep, those that every module has not at all. Types in `quiet` are no objects to
    search. `is_container` decides on subclasses of Python's containers, `is_open` on objects; it may add a type to
    `quiet`.
    """

def now_ns() -> int:
    """The library's clock, in nanoseconds."""

def operator_converts(name: str, /) -> bool:
    """Whether an operator of this name first writes operands of several types in one type."""

def operator_is_maker(name: str, is_pointwise: bool, /) -> bool:
    """Whether the operator can run again on its own, as far as its name says."""

def operator_row_kind(name: str, is_pointwise: bool, /) -> str:
    """How the operator treats rows: mix, each, product or seen."""

def operator_takes_workspace(name: str, /) -> bool:
    """Whether an operator of that name may take memory beside operands and results on a CPU."""

def optimizer_choose_moved(forms: list[tuple[int, int, bool, int]], moved_bytes: int, /) -> list[bool]:
    """Which states leave the device so that at least moved_bytes (0: all) do. forms: as for OptimizerStream.add()."""

def optimizer_host_elements(arrays: int, item_bytes: int, /) -> int:
    """The elements of a state in host memory that share a buffer of the GPU."""

def optimizer_stream_takes(elements: int, /) -> bool:
    """Whether a state of this size is worth streaming."""

def outlook(graph: str, hardware: str, config: str, is_absent: bool, /) -> str:
    """Whether the run will fit, as JSON."""

def plan_again(graph: str, hardware: str, config: str, plan: str, /) -> str | None:
    """The plan's choices with the figures of corrected documents; None if another plan is due."""

def plan_beyond(
    graph: str,
    first_graph: str,
    hardware: str,
    config: str,
    held_bytes: int,
    waiting_forwards: int,
    plan_in_force: str | None,
    /,
) -> tuple[str, str]:
    """The smallest plan for a step that no plan fits into the budget, and the warning about it: `held_bytes` are what
    the script came to hold, or what waiting forwards hold. The plan in force itself, if it makes the same choices.
    """

def plan_by_policy(
    graph: str,
    hardware: str,
    config: str,
    policy: object | None,
    rules_only: bool,
    /,
) -> tuple[str, str, str]:
    """Runs stages 1 and 2: the plan, the decision and the effective config, as JSON."""

def plan_evaluation(config: str, before_bytes: int, peak_bytes: int, rows: int, /) -> str | None:
    """The warning about forwards without gradients whose peak was `peak_bytes`; None if within the budget."""

def plan_explain(plan: str, entry: int, /) -> str:
    """The reasons for an entry; entry -1 is the whole plan."""

def plan_for_optimizer(plan: str | None, config: str, /) -> tuple[bool, bool, bool, bool, int, int]:
    """For memscale's own optimizer: keep its state on disk, release gradients, watch whether the loop needs them, keep
    the state of a GPU's parameters in host memory, the bytes of the buffers of either (0: as few as possible), at
    least how many bytes of state leave the device (0: all). False and 0 without a plan.
    """

def plan_intent(hardware: str, config: str, model: str, parameter_bytes: int, /) -> str:
    """One line before the plan is known: machine, budget, and what mode and flags allow."""

def plan_keep_scratch(graph: str, hardware_before: str, hardware_after: str, software: str, /) -> bool:
    """Keeps for later runs what a step took beyond the estimate, after plan_observe() has corrected the hardware.
    Returns whether it wrote.
    """

def plan_least(graph: str, hardware: str, config: str, /) -> str:
    """The smallest plan for a step that no plan fits into the budget, which measured peaks may keep all the same: the
    plan's pressure is that of the budget.
    """

def plan_make(graph: str, hardware: str, config: str, /) -> str:
    """The plan for three JSON documents. Raises BudgetInfeasibleError if none fits."""

def plan_observe(
    graph: str,
    hardware: str,
    config: str,
    plan: str,
    observation: dict[str, Any],
    /,
) -> tuple[str, str, str, str, int]:
    """Compares a finished step with the plan: the kind of drift, a log line, the corrected graph (the same object if
    nothing was corrected) and hardware, and 0 if the step kept the budget, 1 if not, 2 if it exceeded it by more
    than 1%.
    """

def plan_precision(
    plain: str | None,
    half: str | None,
    hardware: str,
    has_fp16_parameters: bool,
    /,
) -> tuple[str, str, str]:
    """From the graphs without and with BF16: the autocast dtype of forwards, a log line, and the hardware description
    to plan with.
    """

def plan_recall_scratch(graph: str, hardware: str, config: str, software: str, /) -> str | None:
    """The hardware with what an earlier run of the step took; None if there is nothing to correct, or if no plan would
    fit.
    """

def plan_rehearse(graph: str, hardware: str, plan: str, /) -> tuple[bool, str, str]:
    """For a check of the plan against a step that keeps everything: whether that step fits, the plan's class of
    exactness, and the plan to run.
    """

def plan_simulate(graph: str, hardware: str, plan: str, /) -> dict[str, Any]:
    """Simulates steps under the plan: peaks, times and the timeline."""

def plan_table(plan: str, hardware: str | None, /) -> str:
    """The plan in a few lines."""

def plan_tighten(graph: str, hardware: str, config: str, plan: str, attempt: int, /) -> tuple[str, str, str]:
    """Plan and config to try after an allocation failed, and a log line. Raises BudgetInfeasibleError if there is
    none.
    """

def plan_uniform(graph: str | None, hardware: str, config: str, technique: str | None, /) -> str:
    """The plan with one technique for every layer; None: the one that saves the most memory. Without a graph, for
    layers not known yet.
    """

def plan_window(
    graph: str,
    hardware: str,
    config: str,
    streaming: tuple[int, int, int, int, str],
    /,
) -> tuple[str, str, int, int]:
    """Chooses how many bytes of streamed parameters (total, least, trained, in a checkpoint's own files; the other
    files' directory) stay in memory: the log's line, the hardware, the window and the time in which the disk moves
    the rest in a step.
    """

def policy_as_configured(config: str, graph: str | None, hardware: str | None, /) -> str:
    """The decision if no policy runs, as JSON."""

def policy_choice(policy: object | None, context: list[int], /) -> tuple[str, str, int]:
    """Source, the strategy's name and the permille of a second search; the rules' without a policy."""

def policy_context(graph: str, hardware: str, config: str, /) -> list[int]:
    """The features of a run, in the order of the table."""

def policy_costs(policy: object, context: list[int], /) -> list[int]:
    """The predicted cost of each of the policy's strategies."""

def policy_load(artifact: str, /) -> object:
    """Loads a trained policy. Raises MemScaleError if the text is invalid."""

def policy_outcomes(
    graph: str,
    hardware: str,
    config: str,
    /,
) -> tuple[list[int], list[tuple[bool, int, int, int, int]]]:
    """The context, and for each strategy of the table: fits, care, step_ns, peak_bytes, replayed_events."""

def policy_seal(policy: str, /) -> str:
    """Wraps a policy's JSON into an artifact."""

def policy_shipped() -> str:
    """The built-in artifact."""

def policy_tables() -> tuple[list[str], list[tuple[str, str, bool, bool, int]]]:
    """Names of the features; the strategies: name, mode, recomputes, moves, permille of the search."""

def predict_hf_graph(config: str, batch: int, seq: int, half: bool = False, /) -> str:
    """The graph of a training step of a Hugging Face model with sequences of `seq` tokens. `config` is the text of its
    config.json. `half`: in BF16, with AdamW's state in FP32.
    """

def process_memory() -> dict[str, int]:
    """Keys: rss_bytes and peak_rss_bytes, of this process."""

def progress_line(history: object, /) -> str | None:
    """One line about the run after its last step; None before the first."""

def push_add(push: object, path: str, is_found: bool, /) -> None:
    """Adds a log. Nobody is told of a file that is no log if it `is_found` and not named by the user."""

def push_add_spool(push: object, folder: str, own: str | None, /) -> None:
    """Adds the files of a spool that begin with `own`, and those whose writers have gone."""

def push_answered(push: object, status: int, retry_after: int, body: bytes, /) -> None:
    """The answer to the request: status 0 if none came, seconds of Retry-After or 0, body."""

def push_counts(push: object, /) -> dict[str, int]:
    """Runs, steps, refused runs and requests so far."""

def push_new(project: str | None, name: str | None, is_ended: bool, patience_s: float, /) -> object:
    """What sends logs: under a project and name (None: the log's own). `is_ended`: the logs grow no more. It stops if
    nothing was taken for `patience_s` (0: never).
    """

def push_news(push: object, /) -> list[str]:
    """Lines since the last call that the user should read."""

def push_next(push: object, /) -> tuple[str, float, str, str | None, bytes]:
    """The state (send, wait, idle, stopped), seconds to wait, the request's path or the reason of a stop, the
    request's key, its body.
    """

def put_content(container: object, content: object, /) -> None:
    """Puts what content() returned back in its place."""

def put_settings(table: Settings, values: tuple[Any, ...], first: int = 0, end: int = -1, /) -> None:
    """Sets those settings, of the rows from first to before end, that differ from what read() returned, in the order
    of the rows. Ellipsis leaves a setting alone.
    """

def ranks_agree(documents: list[tuple[str, str]], local_ranks: int, /) -> tuple[str, str]:
    """Combines the hardware and config of all ranks, rank 0's first, into one pair for a common plan."""

def read_states(sources: tuple[GeneratorMemory | tuple[Any, Any], ...], /) -> tuple[Any, ...]:
    """The state of each source: a GeneratorMemory; two functions, which read a state and set it; or a dictionary and a
    key.
    """

def report_html(
    model: str,
    tier: str | None,
    graph: str | None,
    hardware: str | None,
    plan: str | None,
    history: object | None,
    counters: dict[str, int] | None,
    /,
) -> str:
    """The report as an HTML page."""

def reset_peak_rss() -> None:
    """Resets peak_rss_bytes to rss_bytes. Raises MemScaleError if the kernel does not allow it."""

def same_bytes(address: int, other: int, bytes: int, /) -> bool:
    """Whether the memory at both addresses has the same bytes."""

def savings(graph: str, hardware: str, config: str, is_absent: bool, /) -> str:
    """The bytes that each mode can save, as JSON."""

def server_token(token: str, /) -> None:
    """Raises ConfigError for a text that can't be a token."""

def server_url(text: str, allow_http: bool, /) -> tuple[bool, str, int, str]:
    """Whether a server's address is https, its host, port and path. Raises ConfigError for an address that a token
    must not be sent to.
    """

def set_float_control(bits: int, /) -> None:
    """Sets bits that float_control() returned."""

def set_modes(
    length: Callable[[], int],
    pop: Callable[[], object],
    push: Callable[[Any], object],
    modes: list[Any],
    /,
    *others: Any,
) -> None:
    """Pops all modes from this thread's stack and pushes these, with torch's three functions for one kind of modes;
    then the same for another kind, if given.
    """

def settings(rows: tuple[tuple[Any, Any, Any], ...], /) -> Settings:
    """A table of settings. A row has readers: a function, a tuple of functions for the parts of a tuple, a dictionary,
    or a dictionary with a key; writers: tuples of a function, the names under which it takes the last parts, and
    whether it takes the value; and probes: tuples of the symbol of a function of torch, the bytes of its result,
    and its arguments, which are numbers, None for torch's context, or (parser's symbol, name) for an enumerator;
    without arguments (None), of a variable of torch.
    """

def signature_ahead(known: list[str], signature: str, /) -> str | None:
    """The signature of larger inputs to trace instead if inputs keep growing, else None."""

def signature_find(known: list[str], signature: str, /) -> str | None:
    """The known signature that serves these inputs, or None."""

def signature_learn(signature: str, graph: str, other: str, other_graph: str, /) -> str | None:
    """The signature with '#' for numbers that differ in the other signature; None if the steps differ."""

def signature_without_numbers(signature: str, dropped: str | None = None, /) -> str:
    """The signature with '#' for numbers that are values of arguments: all, or those that are '#' in `dropped`."""

def spool_begin(spool: object, line: str, /) -> int:
    """Begins a run with its first line, and gives its number."""

def spool_has_dropped(spool: object, /) -> bool:
    """Whether lines that had not been sent were removed to make room."""

def spool_open(folder: str, most_bytes: int, own: str, /) -> object:
    """A bounded folder of runs' lines; names of its files begin with `own`. Closed when it is collected."""

def spool_write(spool: object, run: int, line: str, is_last: bool, /) -> None:
    """Adds a line to a run, which ends with its last one."""

def storage_bytes(tensors: list[torch.Tensor], /) -> int:
    """Bytes of the tensors' distinct storages."""

def streamed_begin(directory: str, /) -> None:
    """New tensors become maps of files in `directory`."""

def streamed_bytes(addresses: list[int], /) -> int:
    """Bytes of the streamed blocks at these addresses."""

def streamed_drop() -> None:
    """Drops all pages; they come back when they are used."""

def streamed_end() -> None:
    """Ends one streamed_begin()."""

def streamed_failure() -> None:
    """Raises the reason of the last failed allocation, if there was one."""

def streamed_keep(addresses: list[int], /) -> None:
    """Keeps these blocks resident, in place of those kept before."""

def streamed_layers_add(layers: object, addresses: list[int], /) -> None:
    """Adds the next layer, by the addresses of its storages."""

def streamed_layers_enter(layers: object, number: int, in_backward: bool, /) -> None:
    """Makes a layer resident and asks for the one after it."""

def streamed_layers_least_bytes(layers: object, /) -> int:
    """The smallest sensible window beside kept blocks."""

def streamed_layers_new() -> object:
    """The order of a model's layers."""

def streamed_lend(address: int, size_bytes: int, /) -> object:
    """The caller's shared map of a file streams as long as the object lives, which must end before the map."""

def streamed_map(path: str, /) -> tuple[object, int, int, list[tuple[str, str, tuple[int, ...], int, int]]]:
    """Maps a safetensors file, whose tensors stream from then on. The file is unmapped with the object; then the map's
    address, the file's bytes, and the tensors as from checkpoint_read().
    """

def streamed_own(addresses: list[int], only_written: bool, /) -> None:
    """Those of these blocks that lie in a checkpoint's file, or only the written ones, get files of their own."""

def streamed_set_window(window_bytes: int, /) -> None:
    """Sets the most resident bytes, and drops down to them."""

def streamed_source(addresses: list[int], /) -> tuple[int, str]:
    """The part of these bytes that lies in checkpoints' own files, and the directory of the other files."""

def streamed_stats() -> dict[str, int]:
    """Keys: blocks, total_bytes, resident_bytes, kept_bytes, window_bytes, fetched_bytes, dropped_bytes."""

def take_snapshot(
    modules: list[Any],
    owned: int,
    inert: set[type],
    sharded: type | None,
    /,
) -> tuple[Snapshot, list[tuple[int, str, Any]], list[tuple[int, str, Any]]]:
    """The scalars and names of the modules' attributes and the names of their buffers, and the parameters of the first
    `owned` of them, unless those are of the class `sharded`. Then the buffers, and the attributes that are neither
    scalars, nor those that every module has, nor of types in `inert`: module's number, name and value.
    """

def team_threads() -> int:
    """Threads that OpenMP would use in this thread, 0 without OpenMP."""

def telemetry_event(
    event: str,
    architecture: str,
    outcome: str,
    parameters: int,
    measured_peak_bytes: int,
    hardware: str | None,
    config: str | None,
    plan: str | None,
    /,
) -> str:
    """The event as one line of JSON."""

def tile_rows(rows: int, /) -> int:
    """Rows of a tile for a module's number of rows."""

def trace_diff(traced: str, seen: str, hardware: str, /) -> tuple[str, int]:
    """The differences of two graphs of the same step, as text, and their number."""

def trial_limits(budget: int, /) -> tuple[int, int]:
    """Limits of a trial: resident bytes and bytes of private maps."""

def unpack_input(handle: Saved, /) -> torch.Tensor:
    """The tensor behind a handle of Region.offload_input()."""

def version() -> str:
    """Version of the library."""

def workspace_bytes(name: str, inputs: tuple[Any, ...], outputs: tuple[Any, ...], copied: int, /) -> int:
    """The bound of what an operator takes beside operands and results; operands and `copied` as in Trace.op()."""

def write_states(sources: tuple[GeneratorMemory | tuple[Any, Any], ...], states: tuple[Any, ...], /) -> None:
    """Puts back what read_states() returned. The first error is raised once all others are set."""
