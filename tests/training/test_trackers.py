"""Trackers start before anything is written; a resumed run continues its records; a tracker that fails ends no run."""

from types import SimpleNamespace

import pytest
from accelerate import tracking
from conftest import quick_run, read_metrics

from modeling_scratch.run.log import _named
from modeling_scratch.run.progress import Progress

UPDATES = ["trackers=[mlflow]", "optimization.max_steps=2"]


class Server:
    """A tracker like MLflow, whose server gives each run an id."""

    name, requires_logging_directory = "mlflow", False
    problems: dict[str, Exception]
    runs: dict[str, str]  # names by id
    steps: list[tuple[str, int]]  # (id, step)

    def __init__(self, project, run_name=None, run_id=None):
        self.given = run_name, run_id

    def _ask(self, what):
        if what in self.problems:
            raise self.problems[what]

    def start(self):
        self._ask("start")
        name, given = self.given
        self.id = given or f"id-{len(self.runs)}"
        assert self.id in self.runs or given is None
        self.runs.setdefault(self.id, name)

    @property
    def tracker(self):
        return SimpleNamespace(info=SimpleNamespace(run_id=self.id))

    def log(self, values, step):
        self._ask("log")
        self.steps += [(self.id, step)] if "train/loss" in values else []

    def finish(self):
        self._ask("finish")


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setitem(tracking.LOGGER_TYPE_TO_CLASS, "mlflow", Server)
    monkeypatch.setattr(tracking, "_available_trackers", [tracking.LoggerType.MLFLOW])
    Server.problems, Server.runs, Server.steps = {}, {}, []
    return Server


def test_a_tracker_without_an_account_ends_a_run_before_anything_is_written(server, trained, tmp_path, capsys):
    server.problems = {"start": ValueError("no API key\nconfigured"), "finish": AttributeError("not started")}
    before = {path: path.stat().st_mtime_ns for path in trained.rglob("*")}
    for folder, options in ((tmp_path / "new", {}), (trained, {"overwrite": True}), (trained, {"resume": True})):
        with pytest.raises(SystemExit) as ended:
            quick_run(folder, "trackers=[mlflow]", **options)
        assert ended.value.code == 2
        lines = capsys.readouterr().err.splitlines()
        assert lines[-1].startswith("error: trackers: mlflow cannot start; ")
        assert "(ValueError: no API key configured)" in lines[-1]
    assert not (tmp_path / "new").exists()
    assert {path: path.stat().st_mtime_ns for path in trained.rglob("*")} == before


def test_a_resumed_run_continues_in_the_run_of_its_tracker(server, tmp_path):
    """Which is named after its folder, and not by Python's random generator, whose seed the recipe sets."""
    with pytest.raises(SystemExit):
        quick_run(tmp_path / "run", *UPDATES, max_minutes=0)
    quick_run(tmp_path / "run", *UPDATES, resume=True)
    assert server.steps == [("id-0", 1), ("id-0", 2)]
    quick_run(tmp_path / "run", *UPDATES, overwrite=True)
    assert server.steps[2:] == [("id-1", 1), ("id-1", 2)]
    assert all(name.startswith("run-") for name in server.runs.values())
    assert len({*server.runs.values()}) == 2


@pytest.mark.parametrize("problem", ["log", "finish"])
def test_a_tracker_that_fails_during_a_run_does_not_end_it(problem, server, tmp_path, capsys):
    server.problems = {problem: OSError("the server is gone")}
    run = quick_run(tmp_path / "run", *UPDATES)
    assert read_metrics(run, "test")
    output = capsys.readouterr().err
    assert output.count("warning: trackers: mlflow ") == output.count("the server is gone") == 1


def test_ids_have_only_characters_that_trackers_accept():
    """wandb 0.31 refuses :;,#?/' in an id, swanlab 0.10 also <>"|*%."""
    given = _named(Progress(tracked_as="l" * 199 + " #2: 50 %, ü/v1.0_(a+b)=c@d-0123abcd"))
    assert given["wandb"]["id"].endswith("lll -2- 50 %- ü-v1.0_(a+b)=c@d-0123abcd")
    assert given["swanlab"]["id"].endswith("lll -2- 50 -- ü-v1.0_(a+b)=c@d-0123abcd")
    assert len(given["wandb"]["id"]) == len(given["swanlab"]["id"]) == 128
    assert given["wandb"]["name"] == given["mlflow"]["run_name"]
