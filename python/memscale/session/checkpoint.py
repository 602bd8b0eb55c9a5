"""Safetensors checkpoints whose tensors stream from their own files, without a copy. C reads the headers and maps the
files; this module makes torch's tensors of them and gives them to a model."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import _core
from ..errors import ConfigError, IntegrationError, MemScaleError, OffloadError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

__all__ = ["check_shards", "load_shards", "maps_end", "maps_stream"]

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_HASHED_AT_ONCE_BYTES = 1 << 20
_SHA256_DIGITS = 64

# The format's names and torch's.
_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "U16": "uint16",
    "U32": "uint32",
    "U64": "uint64",
    "BOOL": "bool",
    "C64": "complex64",
    "C128": "complex128",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
}

# ---- finding and checking shards ---------------------------------------------------


def check_shards(source: str | os.PathLike[str], sha256: Mapping[str, str] | None) -> list[Path]:
    """The files of a checkpoint, after the checks that `memscale.check_checkpoint()` promises."""
    wanted = _wanted(Path(source))
    _check_hashes(wanted, {} if sha256 is None else sha256)
    for shard, names in wanted.items():
        there = {name for name, *_ in _header(shard)}
        missing = sorted(names - there)
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise _damaged(shard, f"{shard}: the index names {missing[0]}{more}, which the file does not have")
    for shard in wanted:
        expected = (sha256 or {}).get(shard.name)
        if expected is not None and _sha256(shard) != expected.lower():
            raise _damaged(shard, f"{shard}: its SHA-256 is not {expected}: the file is damaged, or another one")
    return list(wanted)


def _wanted(path: Path) -> dict[Path, set[str]]:
    """The shards, each with the tensors that the index expects in it."""
    if path.is_dir():
        if (path / _INDEX).exists():
            return _of_index(path / _INDEX)
        files = [path / _SINGLE] if (path / _SINGLE).exists() else sorted(path.glob("*.safetensors"))
        if not files:
            raise _damaged(path, f"{path}: there is no {_INDEX} and no file *.safetensors")
        return {file: set() for file in files}
    return _of_index(path) if path.name.endswith(".index.json") else {path: set()}


def _of_index(index: Path) -> dict[Path, set[str]]:
    try:
        names: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        wanted: dict[Path, set[str]] = {}
        for name, file in names.items():
            if Path(file).name != file:
                raise ValueError(f"{file!r} is not a file's name")
            wanted.setdefault(index.parent / file, set()).add(name)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(index, f"{index}: not an index of safetensors files: {error}") from error
    return dict(sorted(wanted.items()))


def _check_hashes(shards: Mapping[Path, Any], sha256: Mapping[str, str]) -> None:
    if not isinstance(sha256, Mapping):
        raise TypeError(f"sha256 must be a dict of hashes by file name or None, not {type(sha256).__qualname__}")
    unknown = sorted(str(name) for name in set(sha256) - {shard.name for shard in shards})
    if unknown:
        raise ConfigError(f"sha256: {unknown[0]!r} is no file of the checkpoint", field="sha256")
    for name, value in sha256.items():
        if not isinstance(value, str) or len(value) != _SHA256_DIGITS:
            raise ConfigError(f"sha256: {value!r}, for {name}, is not {_SHA256_DIGITS} digits", field="sha256")


def _header(shard: Path) -> list[tuple[str, str, tuple[int, ...], int, int]]:
    try:
        return _core.checkpoint_read(str(shard))
    except MemScaleError as error:
        raise _damaged(shard, str(error), error) from error


def _sha256(shard: Path) -> str:
    digest = hashlib.sha256()
    with shard.open("rb", buffering=0) as file:
        while piece := file.read(_HASHED_AT_ONCE_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def _damaged(file: Path, text: str, reason: MemScaleError | None = None) -> OffloadError:
    code = None if reason is None else reason.code
    system_errno = 0 if reason is None else reason.system_errno
    return OffloadError(text, tier="disk", file=str(file), code=code, system_errno=system_errno)


# ---- tensors -----------------------------------------------------------------------


def _mapped(path: str) -> tuple[Any, list[tuple[str, str, tuple[int, ...], int, int]]]:
    """The file's bytes as a buffer whose tensors stream, and where these lie. The map ends with the last tensor."""
    owner, address, file_bytes, rows = _core.streamed_map(path)
    kind = type("StreamedFile", (ctypes.c_ubyte * file_bytes,), {})
    buffer = kind.from_address(address)  # type: ignore[attr-defined]
    buffer.owner = owner
    return buffer, rows


def _tensors(shard: Path) -> Iterator[tuple[str, torch.Tensor]]:
    import torch

    try:
        buffer, rows = _mapped(str(shard))
    except MemScaleError as error:
        raise _damaged(shard, str(error), error) from error
    for name, kind, shape, offset_bytes, size_bytes in rows:
        dtype = getattr(torch, _DTYPES[kind])
        if size_bytes == 0:
            yield name, torch.empty(shape, dtype=dtype)
            continue
        # As bytes first: torch refuses an offset that isn't a multiple of the element.
        data = torch.frombuffer(buffer, dtype=torch.uint8, count=size_bytes, offset=offset_bytes)
        if data.data_ptr() % dtype.itemsize != 0:
            data = data.clone()
        yield name, data.view(dtype).view(shape)


# ---- a model's parameters -----------------------------------------------------------


def load_shards(model: torch.nn.Module, shards: list[Path], strict: bool) -> None:
    """Gives `model` the tensors of `shards`, as `memscale.load_checkpoint()` promises. Streaming must be on."""
    if hasattr(model, "_memscale_executor"):
        raise IntegrationError("load_checkpoint: the model is wrapped; load the checkpoint first, then call wrap()")
    found: dict[str, torch.Tensor] = {}
    for shard in shards:
        found.update(_tensors(shard))
    model.load_state_dict(_as_the_models(model, found), strict=strict, assign=True)
    absent = [name for name, value in _named(model) if value.is_meta]
    if absent:
        raise IntegrationError(
            f"load_checkpoint: {absent[0]} is on the meta device and not in the checkpoint; make it on the CPU"
        )


def _named(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def _as_the_models(model: torch.nn.Module, found: dict[str, torch.Tensor]) -> dict[str, Any]:
    """The state to assign: tensors of the model's types, and one parameter for all names of a shared one."""
    import torch

    state: dict[str, Any] = dict(found)
    owned = dict(_named(model))
    made: dict[int, torch.Tensor] = {}
    for name, own in owned.items():
        if name in found and id(own) not in made:
            value = found[name] if found[name].dtype == own.dtype else found[name].to(own.dtype)
            is_parameter = isinstance(own, torch.nn.Parameter)
            made[id(own)] = torch.nn.Parameter(value, own.requires_grad) if is_parameter else value
    state.update((name, made[id(own)]) for name, own in owned.items() if id(own) in made)
    return state


# ---- files that other libraries map --------------------------------------------------

_lock = threading.Lock()
_depth = 0
_original: Any = None


def maps_stream() -> None:
    """From now on, tensors of safetensors files that other libraries map through torch stream too."""
    import torch

    global _depth, _original
    with _lock:
        _depth += 1
        if _depth == 1:
            _original = vars(torch.UntypedStorage).get("from_file")
            torch.UntypedStorage.from_file = staticmethod(_from_file(torch.UntypedStorage.from_file))  # type: ignore


def maps_end() -> None:
    """Ends one `maps_stream()`. Files that are mapped stay so."""
    import torch

    global _depth, _original
    with _lock:
        _depth -= 1
        if _depth > 0:
            return
        if _original is None:
            del torch.UntypedStorage.from_file
        else:
            torch.UntypedStorage.from_file = _original  # type: ignore[method-assign]
        _original = None


def _from_file(original: Any) -> Any:
    def from_file(filename: Any, *args: Any, **kwargs: Any) -> Any:
        if not args and kwargs.get("shared") is False and isinstance(filename, (str, os.PathLike)):
            storage = _streamed_storage(os.fspath(filename), kwargs.get("nbytes"))
            if storage is not None:
                return storage
        return original(filename, *args, **kwargs)

    return from_file


def _streamed_storage(path: str, file_bytes: Any) -> Any:
    """A storage of the whole file; None if it is no sound safetensors file of this size."""
    import torch

    try:
        buffer, _ = _mapped(path)
    except MemScaleError:
        return None
    return torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage() if len(buffer) == file_bytes else None
