"""Trackers start before anything is written; a resumed run continues its records; a tracker that fails ends no run."""

from types import SimpleNamespace

import pytest
from accelerate import tracking
from conftest import quick_run, read_metrics, unchanged

from modeling_scratch.run.log import _named
from modeling_scratch.run.progress import Progress

UPDATES = ["trackers=[mlflow]", "optimization.max_steps=2"]


class Server:
    """A tracker like MLflow, whose server gives each run an id."""

    name, requires_logging_directory = "mlflow", False
    problems: dict[str, Exception]
    runs: dict[str, str]  # names by id
    steps: list[tuple[str, int]]  # (id, step)
    closed: list[str]  # ids

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
        self.closed.append(self.id)


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setitem(tracking.LOGGER_TYPE_TO_CLASS, "mlflow", Server)
    monkeypatch.setattr(tracking, "_available_trackers", [tracking.LoggerType.MLFLOW, tracking.LoggerType.TENSORBOARD])
    Server.problems, Server.runs, Server.steps, Server.closed = {}, {}, [], []
    return Server


def test_a_tracker_without_an_account_ends_a_run_before_anything_is_written(server, trained, tmp_path, fails):
    server.problems = {"start": ValueError("no API key\nconfigured"), "finish": AttributeError("not started")}
    with unchanged(trained):
        for folder, options in ((tmp_path / "new", {}), (trained, {"overwrite": True}), (trained, {"resume": True})):
            line = fails(folder, "trackers=[mlflow]", **options)
            assert line.startswith("error: trackers: mlflow cannot start; ")
            assert "(ValueError: no API key configured)" in line
    assert not (tmp_path / "new").exists()


def test_a_resumed_run_continues_in_the_runs_of_its_trackers(server, tmp_path, stops):
    """
    Which are named after its folder, and not by Python's random generator, whose seed the recipe sets. Trackers are
    also closed when a run is stopped.
    """
    pytest.importorskip("tensorboard")
    run, options = tmp_path / "run", ["trackers=[mlflow, tensorboard]", "optimization.max_steps=2"]
    stops(run, *options, max_minutes=0)
    assert server.closed == ["id-0"]
    quick_run(run, *options, resume=True)
    assert server.steps == [("id-0", 1), ("id-0", 2)]
    assert len(list((run / "tracking" / "modeling_scratch").glob("events.out.tfevents.*"))) == 2
    quick_run(run, *options, overwrite=True)
    assert server.steps[2:] == [("id-1", 1), ("id-1", 2)]
    assert len(list((run / "tracking" / "modeling_scratch").glob("events.out.tfevents.*"))) == 1
    assert server.closed == ["id-0", "id-0", "id-1"]
    assert all(name.startswith("run-") for name in server.runs.values())
    assert len({*server.runs.values()}) == 2


def test_a_resumed_run_continues_in_its_run_of_trackio(tmp_path, stops):
    trackio = pytest.importorskip("trackio")
    options = ["trackers=[trackio]", "optimization.max_steps=2"]
    stops(tmp_path / "run", *options, max_minutes=0)
    quick_run(tmp_path / "run", *options, resume=True)
    (run,) = trackio.Api().runs("modeling_scratch")
    assert run.name.startswith("run-")


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
    assert given["wandb"]["resume"] == "allow"
