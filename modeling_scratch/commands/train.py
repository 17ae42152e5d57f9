"""`scratch train`: train a translator from a recipe, resume a run, or describe what a run would do."""

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ..errors import UserError
from . import evaluate as evaluating
from .cli import Debug, is_main_process, one_line_errors, set_up_terminal

Overrides = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="recipe keys to change")]
Config = Annotated[
    str | None, typer.Option(help="a recipe: a YAML file, or a name from `scratch recipes` (default: embedded)")
]
Split = Annotated[
    Literal["train", "validation", "test"] | None, typer.Option(help="what --evaluate scores (default: test)")
]
Resume = Annotated[bool, typer.Option("--resume", help="resume the run in output_dir (auto: or begin it)")]


def main(
    overrides: Overrides = None,
    config: Config = None,
    resume: Resume = False,
    resume_from: Annotated[str | None, typer.Option(help="such as step-0000500; later checkpoints are deleted")] = None,
    max_minutes: Annotated[float | None, typer.Option(min=0, help="then write a checkpoint and exit with 75")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace the run in output_dir")] = False,
    evaluate: Annotated[
        str | None, typer.Option(help="score this model folder or Hub name, or several together; do not train")
    ] = None,
    split: Split = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="describe the run; train nothing")] = False,
    processes: Annotated[
        int | None, typer.Option(min=1, help="how many --dry-run assumes (default: as launched)")
    ] = None,
    debug: Debug = False,
) -> None:
    """
    Train a translator. For example: scratch train --config multi30k-en-de seed=1

    `scratch recipes` lists the recipes that come with this package; their models are in configuration/models. The keys
    of a recipe, each with its meaning and default, are in modeling_scratch/recipe/schema.py; --dry-run prints a recipe
    with all of them.
    """
    set_up_terminal()
    # --resume is a flag, so the `auto` after it arrives among the overrides.
    automatic = resume and "auto" in (overrides or [])
    overrides = [each for each in overrides or [] if not automatic or each != "auto"]
    interrupted = "interrupted; if a checkpoint was written, --resume continues from it"
    with one_line_errors(debug, is_main_process(), interrupted):
        for flag, given in (("--config", config), ("--evaluate", evaluate), ("--resume-from", resume_from)):
            if given == "":
                raise UserError(f"{flag} is empty")
        _check_options(automatic, resume, resume_from, max_minutes, overwrite, evaluate, split, dry_run, processes)
    if evaluate:
        evaluating.main(evaluate, overrides, config, split or "test", debug)
        return
    with one_line_errors(debug, is_main_process(), interrupted):
        from ..training import processes as threads  # noqa: F401, I001 (it watches other processes while the rest is imported)
        from ..hub.push import push_run
        from ..recipe.reading import load_recipe
        from ..recipe import find_recipe, shipped_recipes
        from ..training.processes import explained_loss_of_a_process
        from ..training.processes import make_accelerator
        from ..training.stopping import StopRequest
        from ..apps.experiments.dry_run import describe_run

        recipe = load_recipe(find_recipe(config) if config else shipped_recipes()["embedded"], overrides)
        before = Path(recipe.output_dir) if resume or resume_from else None
        accelerator, stop = make_accelerator(recipe, before), StopRequest(max_minutes)
        with explained_loss_of_a_process(accelerator):
            if dry_run:
                lines = list(describe_run(recipe, accelerator, processes))
            else:
                lines = _train(recipe, accelerator, stop, automatic, resume, resume_from, overwrite)
        if is_main_process():
            print("\n".join(lines))
            if not dry_run and recipe.hub.repository is not None:
                print(push_run(recipe).describe())


def _check_options(
    automatic: bool,
    resume: bool,
    resume_from: str | None,
    max_minutes: float | None,
    overwrite: bool,
    evaluate: str | None,
    split: str | None,
    dry_run: bool,
    processes: int | None,
) -> None:
    """UserError for options that contradict each other."""
    if automatic and resume_from:
        raise UserError("--resume auto finds the checkpoint itself; give it or --resume-from")
    if resume_from == "auto":
        raise UserError("--resume-from takes the name of a checkpoint; --resume auto continues a run or begins it")
    for flag, given in (("--evaluate", evaluate), ("--dry-run", dry_run)):
        if given and (resume or resume_from or overwrite):
            raise UserError(f"{flag} begins no run: --resume and --overwrite do not go with it")
    if overwrite and (resume or resume_from):
        raise UserError("--resume continues a run and --overwrite deletes it; give one of them")
    if evaluate and dry_run:
        raise UserError("--evaluate scores a model, and --dry-run describes a run; give one of them")
    if processes and not dry_run:
        raise UserError("--processes is for --dry-run only; accelerate launch starts processes")
    if split and not evaluate:
        raise UserError("--split is for --evaluate only")
    if max_minutes is not None and (evaluate or dry_run):
        raise UserError("--max-minutes stops training; it does not go with --evaluate or --dry-run")


def _train(
    recipe, accelerator, stop, automatic: bool, resume: bool, checkpoint: str | None, overwrite: bool
) -> list[str]:
    """Begin or resume a run, make its updates and score it. Returns what to print."""
    from ..training.finish import finish, is_finished
    from ..training.processes import on_main
    from ..training.run import TrainingRun
    from ..training.train import train

    if automatic:
        if on_main(accelerator, lambda: is_finished(recipe)):
            return [f"{recipe.output_dir} is finished; --resume alone scores it again"]
        run = TrainingRun.begin_or_resume(recipe, accelerator, stop)
    elif resume or checkpoint:
        run = TrainingRun.resume(recipe, accelerator, checkpoint, stop)
    else:
        run = TrainingRun.begin(recipe, accelerator, overwrite, stop)
    train(run)
    return describe_result(finish(run))


def describe_result(result: dict[str, Any]) -> list[str]:
    """The lines that report a finished run, and what to run next."""
    lines = []
    for sample in result["samples"]:
        lines += ["", *(f"  {field:<11}  {text}" for field, text in sample.items())]
    step, minutes, rate = result["step"], result["seconds"] / 60, result["target_tokens"] / result["seconds"]
    lines.append(f"\n{step:,} updates in {minutes:.1f} minutes of training, {rate:,.0f} target tokens a second")
    for split, scores in result["scores"].items():
        lines += [f"On {split}:", *evaluating.describe_scores(scores)]
        if before := result["before"].get(split):
            lines += ["  before fine-tuning:", *(f"  {line}" for line in evaluating.describe_scores(before))]
    command = f"{os.path.relpath(sys.executable)} -m modeling_scratch translate {shlex.quote(result['folder'])}"
    return [
        *lines,
        f"The model is in {result['folder']}. Next, translate a sentence of your own:",
        f"  echo {shlex.quote(result['samples'][0]['source'])} | {command}",
    ]
