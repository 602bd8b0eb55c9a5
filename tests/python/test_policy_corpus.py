"""The corpus of the trained policy: the same seed gives the same bytes, a damaged part is made again, and training and
export give the library's own predictions."""

from __future__ import annotations

import contextlib
import json
import random
from pathlib import Path
from typing import Any

import pytest

from memscale import BudgetInfeasibleError, _core
from memscale.policy import corpus, scenarios, seal_policy
from memscale.policy.chains import KINDS, chain_graph
from memscale.policy.events import read_events

ROOT = Path(__file__).resolve().parents[2]
ROWS = 4


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    corpus.make_corpus(folder, seed=5, rows=ROWS, processes=1)
    return folder


def test_the_same_seed_gives_the_same_bytes(made: Path, tmp_path: Path) -> None:
    again = corpus.make_corpus(tmp_path, seed=5, rows=ROWS, processes=2)
    names = sorted(path.name for path in made.iterdir())
    assert names == sorted(path.name for path in tmp_path.iterdir()) == ["manifest.json", "part-00000.jsonl"]
    for name in names:
        assert (made / name).read_bytes() == (tmp_path / name).read_bytes()
    assert again == json.loads((made / "manifest.json").read_text())
    assert corpus.row_of(5, 0) != corpus.row_of(6, 0)


def test_every_row_names_its_graph_and_its_seed(made: Path) -> None:
    rows = list(corpus.read_rows(made))
    features, strategies = _core.policy_tables()
    assert [(row["seed"], row["index"]) for row in rows] == [(5, i) for i in range(ROWS)]
    for row in rows:
        assert len(row["graph"]) == 16
        assert len(row["context"]) == len(features)
        assert len(row["outcomes"]) == len(strategies)


@pytest.mark.parametrize("harm", ["cut", "changed", "other_seed", "empty"])
def test_a_damaged_part_is_found_and_made_again(
    made: Path, tmp_path: Path, harm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = (made / "part-00000.jsonl").read_bytes()
    harmed = {
        "cut": whole[:-200],
        "changed": whole.replace(b'"ranks": ', b'"ranks": 1', 1),
        "other_seed": whole,
        "empty": b"",
    }[harm]
    (tmp_path / "part-00000.jsonl").write_bytes(harmed)
    if harm != "other_seed":
        with pytest.raises(ValueError, match="part-00000.jsonl: damaged"):
            list(corpus.read_rows(tmp_path))
    jobs: list[corpus.Job] = []
    monkeypatch.setattr(corpus, "_by_processes", lambda found, _: iter([jobs.append(job) or 0 for job in found]))
    with pytest.raises(ValueError) if harm != "other_seed" else contextlib.nullcontext():
        corpus.make_corpus(tmp_path, seed=6 if harm == "other_seed" else 5, rows=ROWS, processes=1)
    assert jobs == [(str(tmp_path), 6 if harm == "other_seed" else 5, 0, ROWS, None)]


def test_what_is_whole_is_not_made_again(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(jobs: list[object], _: int) -> object:
        assert jobs == []
        return iter(())

    monkeypatch.setattr(corpus, "_by_processes", fail)
    corpus.make_corpus(made, seed=5, rows=ROWS, processes=1)


# -- runs like those of telemetry ---------------------------------------------------------------

EVENT = {
    "schema_version": 2, "event": "wrap_called", "memscale_version": "0.1", "architecture": "encoder",
    "parameters": "10M-100M",
    "device": "gpu", "device_memory": "18-36GB", "mode": "balanced", "budget_given": True, "layers": "9-16",
    "pressure": "1.1-2", "decision_source": "rule", "techniques": ["recompute"],
    "peak": "0.25-0.5", "step": "0.85-1.1", "measured_peak": "unknown", "outcome": "planned",
}  # fmt: skip


def write_events(folder: Path, *changes: dict[str, Any]) -> Path:
    path = folder / "events.jsonl"
    path.write_text("".join(json.dumps(EVENT | change) + "\n" for change in changes))
    return path


def test_a_run_of_an_event_lies_in_its_classes(tmp_path: Path) -> None:
    seen = read_events(write_events(tmp_path, {}, {"pressure": "<0.25"}, {"event": "finish"}))
    assert (len(seen.listed), seen.skipped) == (1, 2)
    named = ("architecture", "parameters", "device", "device_memory", "layers", "pressure", "budget_given")
    planned = 0
    for number in range(6):
        drawn = scenarios.draw(number, seen.listed)
        assert drawn.family == "bert" and drawn.hardware_class in scenarios._GPUS and drawn.differs == ()
        with contextlib.suppress(BudgetInfeasibleError):
            documents = drawn.hardware, drawn.config, _core.plan_make(drawn.graph, drawn.hardware, drawn.config)
            parameters = json.loads(drawn.graph)["residents"]["parameter_bytes"] // 4
            event = ("wrap_called", "encoder", "planned", parameters, 2**64 - 1)
            sent = json.loads(_core.telemetry_event(*event, *documents))
            assert {name: sent[name] for name in named} == {name: EVENT[name] for name in named}
            planned += 1
    assert planned >= 2
    assert scenarios.draw(3, seen.listed) == scenarios.draw(3, seen.listed) != scenarios.draw(3)


def test_events_become_rows_of_the_same_format(made: Path, tmp_path: Path) -> None:
    odd = {"architecture": "recurrent", "parameters": ">10B"}  # no recurrent chain is so large
    line = ["--seed", "5", "--rows", "3", "--processes", "1"]
    events = write_events(tmp_path, {"layers": "<9"}, odd)
    assert corpus.main([str(tmp_path / "rows"), *line, "--events", str(events)]) == 0
    rows, plain = list(corpus.read_rows(tmp_path / "rows")), next(corpus.read_rows(made))
    assert [set(row) - set(plain) for row in rows] == [{"events", "differs"}] * 3
    assert {name for row in rows for name in row["differs"]} >= {"parameters"}
    manifest = json.loads((tmp_path / "rows/manifest.json").read_text())
    assert manifest["events"]["used"] == 2 and manifest["events"]["differ"]["parameters"] >= 1
    pytest.importorskip("numpy")
    from memscale.policy import training

    both = training.load_rows(made, tmp_path / "rows")
    assert len(both.rows) == len(training.load_rows(made).rows) + manifest["rows_that_fit"]
    # A folder of other events, or of none, is made again.
    assert not corpus._is_whole(str(tmp_path / "rows"), 5, 0, 3, None)
    assert corpus._is_whole(str(tmp_path / "rows"), 5, 0, 3, read_events(events))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema_version": 1}, "line 2: no telemetry event (schema version 1"),
        ({"layers": "some"}, "'some' is no bucket"),
        ({"pressure": 3}, "line 2: no telemetry event"),
        ({"pressure": "<0.25"}, None),
    ],
)
def test_a_file_without_such_events_is_refused_by_name(
    tmp_path: Path, change: dict[str, Any], words: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    events = write_events(tmp_path, change if words is None else {}, change)
    for path, expected in ((events, words or "no event of a plan under pressure"), (tmp_path / "none", "none")):
        with pytest.raises(SystemExit) as ended:
            corpus.main([str(tmp_path / "rows"), "--rows", "1", "--events", str(path)])
        assert ended.value.code == 2 and expected in capsys.readouterr().err
    assert not (tmp_path / "rows").exists()


def test_a_ray_cluster_gives_the_same_bytes(made: Path, tmp_path: Path) -> None:
    ray = pytest.importorskip("ray")
    try:
        corpus.make_corpus(tmp_path, seed=5, rows=ROWS, processes=1, use_ray=True)
    finally:
        ray.shutdown()
    for name in ("manifest.json", "part-00000.jsonl"):
        assert (made / name).read_bytes() == (tmp_path / name).read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_chains_are_sound_graphs(kind: str) -> None:
    for seed in range(10):
        graph = chain_graph(kind, random.Random(seed))
        _core.graph_check(graph)
        assert graph == chain_graph(kind, random.Random(seed))


def test_every_family_and_class_is_drawn() -> None:
    drawn = [scenarios.draw(number) for number in range(150)]
    assert {one.family for one in drawn} == set(scenarios.FAMILIES)
    assert {one.hardware_class for one in drawn} == set(scenarios.CLASSES)
    assert {one.ranks for one in drawn} >= {1, 2, 4, 8}


def _drawn_rows() -> Any:
    """Rows as a corpus has them, with features and costs drawn at random: enough of them for trees with splits."""
    np = pytest.importorskip("numpy")
    from memscale.policy import training

    rng, count, listed = np.random.default_rng(3), 300, training.actions()
    contexts = rng.integers(0, 2000, (count, len(_core.policy_tables()[0]))).astype(float)
    fits = rng.random((count, len(listed))) < 0.95
    slope = contexts[:, :1] * contexts[:, 2:3] / 4e7
    regret = slope * rng.random(len(listed)) + rng.random((count, len(listed))) / 50
    families = rng.choice(["llama", "gpt2", "bert"], count)
    rows = [{"family": str(family)} for family in families]
    work = rng.random((count, len(listed)))
    return training.Rows(rows, listed, contexts, fits, fits, regret, work, rng.random(count) < 0.2)


def test_the_export_gives_the_librarys_own_predictions() -> None:
    pytest.importorskip("lightgbm", reason="training is an extra")
    from memscale.policy import training

    rows = _drawn_rows()
    trained = training.train(rows, "small", most_trees=8)
    body = json.loads(trained.artifact)["policy"]
    assert any(len(tree["nodes"]) > 1 for tree in body["trees"])
    assert training.check_equal(rows, trained) == len(rows.rows) * len(trained.chosen)
    assert training.train(rows, "small", most_trees=8).artifact == trained.artifact
    leaf = next(node for node in body["trees"][-1]["nodes"] if len(node) == 1)
    leaf[0] += 1
    changed = training.Trained(seal_policy(json.dumps(body)), trained.boosters, trained.chosen, trained.used)
    with pytest.raises(ValueError, match="differ"):
        training.check_equal(rows, changed)


def test_training_on_a_small_corpus_gives_an_artifact(made: Path) -> None:
    pytest.importorskip("lightgbm", reason="training is an extra")
    from memscale.policy import evaluation, training

    rows = training.load_rows(made)
    trained = training.train(rows, "tiny", most_trees=2)
    path = made / "policy.json"
    path.write_text(trained.artifact)
    choices = evaluation.choices_of(rows, path)
    everyone = rows.fits[:, 0] | True
    oracle = evaluation.figures(rows, choices["oracle"], everyone)
    assert all(evaluation.figures(rows, choice, everyone)["regret"] >= oracle["regret"] for choice in choices.values())
    path.unlink()


def test_the_built_in_policy_is_the_one_of_the_manifest() -> None:
    manifest = json.loads((ROOT / "src/policy/manifest.json").read_text())
    features, strategies = _core.policy_tables()
    assert [tuple(row) for row in manifest["strategies"]] == strategies
    assert list(manifest["ranges"]) == features
    assert _core.policy_shipped() == (ROOT / "src/policy/shipped.json").read_text()
    for feature in json.loads(_core.policy_shipped())["policy"]["features"]:
        least, most = manifest["ranges"][feature["name"]]
        assert least <= feature["least"] <= feature["usual"] <= feature["most"] <= most
