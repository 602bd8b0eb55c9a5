"""Models whose weights stream from the files of a checkpoint: equal bytes, no copy, and errors that name the file."""

from __future__ import annotations

import hashlib
import json
import pathlib

import pytest
import torch
from streamed_cases import load, save_shards

import memscale
from memscale import _core

pytest.importorskip("safetensors")
from safetensors.torch import save_file

INDEX = "model.safetensors.index.json"


class Tied(torch.nn.Module):
    """Two layers, one weight under two names, a buffer, and a parameter that is too small to stream."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(256, 512)
        self.second = torch.nn.Linear(512, 256)
        self.embed = torch.nn.Embedding(300, 256)
        self.head = torch.nn.Linear(256, 300, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.rand(256))


def make(folder: pathlib.Path, count: int = 2) -> Tied:
    torch.manual_seed(0)
    model = Tied()
    del model.head.weight  # a checkpoint has shared weights once
    save_shards(model, folder, count)
    model.head.weight = model.embed.weight
    return model


def on_meta() -> Tied:
    with torch.device("meta"):
        return Tied()


def shards(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(folder.glob("*.safetensors"))


def test_a_model_on_meta_gets_the_checkpoints_bytes_without_a_copy(tmp_path: pathlib.Path) -> None:
    plain, before = make(tmp_path), _core.streamed_stats()["blocks"]
    resident = _core.hostmem_stats()["live_bytes"]
    model = memscale.load_checkpoint(on_meta(), tmp_path)
    assert _core.hostmem_stats()["live_bytes"] == resident
    assert _core.streamed_stats()["blocks"] == before + 3
    for name, value in plain.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name
    assert model.head.weight is model.embed.weight and isinstance(model.first.weight, torch.nn.Parameter)
    _core.streamed_drop()
    assert torch.equal(model.first.weight, plain.first.weight)
    del model, value
    assert _core.streamed_stats()["blocks"] == before


def test_written_weights_are_kept_and_the_file_is_not_changed(tmp_path: pathlib.Path) -> None:
    plain = make(tmp_path, 1)
    model = memscale.load_checkpoint(on_meta(), tmp_path)
    digest = hashlib.sha256(shards(tmp_path)[0].read_bytes()).hexdigest()
    with torch.no_grad():
        model.first.weight[7] += 1
        model.first.weight.data[9].mul_(2)
        plain.first.weight[7] += 1
        plain.first.weight[9].mul_(2)
    for _ in range(3):
        _core.streamed_drop()
        assert torch.equal(model.first.weight, plain.first.weight)
    assert hashlib.sha256(shards(tmp_path)[0].read_bytes()).hexdigest() == digest


def test_one_file_an_index_and_a_folder_without_index_are_checkpoints(tmp_path: pathlib.Path) -> None:
    plain = make(tmp_path)
    for source in (tmp_path, str(tmp_path / INDEX)):
        model = memscale.load_checkpoint(on_meta(), source)
        assert torch.equal(model.second.weight, plain.second.weight)
    (tmp_path / INDEX).unlink()
    assert torch.equal(memscale.load_checkpoint(on_meta(), tmp_path).second.weight, plain.second.weight)
    save_file(plain.second.state_dict(), tmp_path / "one.safetensors")
    one = memscale.load_checkpoint(torch.nn.Linear(512, 256), tmp_path / "one.safetensors")
    assert torch.equal(one.weight, plain.second.weight)


def test_other_types_are_converted_to_the_models(tmp_path: pathlib.Path) -> None:
    state = torch.nn.Linear(512, 256).bfloat16().state_dict()
    save_file(state, tmp_path / "half.safetensors")
    model = memscale.load_checkpoint(torch.nn.Linear(512, 256), tmp_path / "half.safetensors")
    assert model.weight.dtype == torch.float32
    assert torch.equal(model.weight, state["weight"].float())


def test_missing_and_damaged_shards_are_named(tmp_path: pathlib.Path) -> None:
    make(tmp_path)
    first, second = shards(tmp_path)
    whole = second.read_bytes()
    damages: list[bytes | None] = [whole[:-1], whole[:100], b"", whole + b"\0", b"\xff" * 8 + whole[8:], None]
    for damage in damages:
        second.unlink() if damage is None else second.write_bytes(damage)
        for call in (memscale.check_checkpoint, lambda source: memscale.load_checkpoint(on_meta(), source)):
            with pytest.raises(memscale.OffloadError, match=second.name) as caught:
                call(tmp_path)
            assert caught.value.file == str(second) and caught.value.tier == "disk"
    second.write_bytes(first.read_bytes())
    with pytest.raises(memscale.OffloadError, match=f"{second.name}: the index names .* does not have"):
        memscale.check_checkpoint(tmp_path)


def test_a_changed_byte_is_found_by_the_hash(tmp_path: pathlib.Path) -> None:
    make(tmp_path)
    hashes = {shard.name: hashlib.sha256(shard.read_bytes()).hexdigest() for shard in shards(tmp_path)}
    memscale.check_checkpoint(tmp_path, sha256=hashes)
    damaged = bytearray(shards(tmp_path)[1].read_bytes())
    damaged[-1] ^= 1
    shards(tmp_path)[1].write_bytes(damaged)
    memscale.check_checkpoint(tmp_path)
    with pytest.raises(memscale.OffloadError, match=f"{shards(tmp_path)[1].name}: its SHA-256"):
        memscale.load_checkpoint(on_meta(), tmp_path, sha256=hashes)
    with pytest.raises(memscale.ConfigError, match="'other' is no file"):
        memscale.check_checkpoint(tmp_path, sha256={"other": "0" * 64})
    with pytest.raises(memscale.ConfigError, match="64 digits"):
        memscale.check_checkpoint(tmp_path, sha256={shards(tmp_path)[0].name: "12"})


def test_folders_and_indexes_that_are_no_checkpoint_are_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(memscale.OffloadError, match="no model.safetensors.index.json"):
        memscale.check_checkpoint(tmp_path)
    with pytest.raises(memscale.OffloadError, match="nowhere"):
        memscale.check_checkpoint(tmp_path / "nowhere.safetensors")
    for text in ("", "[]", "{}", '{"weight_map": []}', json.dumps({"weight_map": {"a": "../a.safetensors"}})):
        (tmp_path / INDEX).write_text(text)
        with pytest.raises(memscale.OffloadError, match="not an index"):
            memscale.check_checkpoint(tmp_path)


def test_models_that_do_not_fit_are_refused(tmp_path: pathlib.Path) -> None:
    make(tmp_path)
    with pytest.raises(RuntimeError, match="Missing key.*weight"):
        memscale.load_checkpoint(torch.nn.Linear(3, 3), tmp_path)
    with torch.device("meta"):
        larger = torch.nn.Sequential()
        larger.register_buffer("kept", torch.ones(3), persistent=False)
    with pytest.raises(memscale.IntegrationError, match="kept is on the meta device"):
        memscale.load_checkpoint(larger, tmp_path, strict=False)
    model = memscale.load_checkpoint(on_meta(), tmp_path)
    wrapped = memscale.wrap(torch.nn.Sequential(model.first))
    with pytest.raises(memscale.IntegrationError, match="is wrapped"):
        memscale.load_checkpoint(wrapped, tmp_path)
    memscale.detach(wrapped)


def test_pretrained_models_that_convert_nothing_stream_from_their_files(tmp_path: pathlib.Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_embd=256, n_layer=2, n_head=4, vocab_size=500, bos_token_id=0, eos_token_id=0)
    torch.manual_seed(0)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path, max_shard_size="2MB")
    assert len(shards(tmp_path)) > 2
    plain = transformers.GPT2LMHeadModel.from_pretrained(tmp_path)
    before = torch.UntypedStorage.from_file
    with memscale.stream():
        streamed = transformers.GPT2LMHeadModel.from_pretrained(tmp_path)
    assert torch.UntypedStorage.from_file == before
    large = [value for value in streamed.parameters() if value.nbytes >= 160 << 10]
    assert _core.streamed_bytes([value.data_ptr() for value in large]) >= sum(value.nbytes - 8192 for value in large)
    _core.streamed_drop()
    for name, value in plain.state_dict().items():
        assert torch.equal(value, streamed.state_dict()[name]), name


def test_other_files_are_mapped_as_before(tmp_path: pathlib.Path) -> None:
    (tmp_path / "bytes").write_bytes(bytes(range(200)) * 2000)
    blocks = _core.streamed_stats()["blocks"]
    with memscale.stream(), memscale.stream():
        shared = torch.UntypedStorage.from_file(str(tmp_path / "bytes"), shared=True, nbytes=400000)
        private = torch.UntypedStorage.from_file(str(tmp_path / "bytes"), shared=False, nbytes=400000)
        assert list(shared)[:300] == list(private)[:300] == [*range(200), *range(100)]
        assert _core.streamed_stats()["blocks"] == blocks


def test_load_reads_what_save_shards_wrote(tmp_path: pathlib.Path) -> None:
    plain = make(tmp_path, 1)
    assert torch.equal(load(shards(tmp_path)[0])["scale"], plain.scale)
