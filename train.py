"""Train a translator from sentence pairs by a recipe, continue a stopped run, or score a model."""

import signal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while Python imports is no traceback

import logging
import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from modeling_scratch.cli import log_to_terminal, one_line_errors, print_whatever_happens

Overrides = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="recipe keys to change")]
Resume = Annotated[bool, typer.Option("--resume", help="continue the run in output_dir; --resume auto: or begin it")]
Config = Annotated[Path | None, typer.Option(help="recipe, a YAML file  [default: the embedded corpus's]")]


def main(
    overrides: Overrides = None,
    config: Config = None,
    resume: Resume = False,
    resume_from: Annotated[str | None, typer.Option(help="as step-0000500; later checkpoints are deleted")] = None,
    max_minutes: Annotated[float | None, typer.Option(min=0, help="then write a checkpoint and exit with 75")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace the run in output_dir")] = False,
    evaluate: Annotated[str | None, typer.Option(help="score this model folder or Hub name; do not train")] = None,
    split: Annotated[Literal["train", "validation", "test"], typer.Option(help="what --evaluate scores")] = "test",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="say what the run would be; train nothing")] = False,
    processes: Annotated[
        int | None, typer.Option(min=1, help="what --dry-run is to suppose  [default: those that were launched]")
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="show the traceback of an error")] = False,
) -> None:
    """
    Train a translator. For example: python train.py --config configuration/recipes/multi30k-en-de.yaml seed=1

    Recipes are in configuration/recipes, models in configuration/models. The keys of a recipe, each with its meaning
    and default, are in modeling_scratch/recipe.py; --dry-run prints a recipe with all of them.
    """
    main_process = os.environ.get("RANK", "0") == "0"
    log_to_terminal(logging.INFO if main_process else logging.ERROR)
    # --resume is a flag, so what stands after it is among the other words.
    automatic = resume and "auto" in (overrides or [])
    overrides = [each for each in overrides or [] if not automatic or each != "auto"]
    with one_line_errors(debug, main_process, "interrupted; if a checkpoint was written, --resume continues from it"):
        if resume_from == "auto":
            raise ValueError("--resume-from takes the name of a checkpoint; --resume auto continues a run or begins it")
        for flag, given in (("--evaluate", evaluate), ("--dry-run", dry_run)):
            if given and (resume or resume_from or overwrite):
                raise ValueError(f"{flag} writes nothing: --resume and --overwrite do not go with it")
        if evaluate and dry_run:
            raise ValueError("--evaluate scores a model, and --dry-run describes a run; give one of them")
        if processes and not dry_run:
            raise ValueError("--processes is what --dry-run supposes; accelerate launch starts processes")

        import datasets

        from modeling_scratch.dry_run import describe_run
        from modeling_scratch.evaluation import score_model
        from modeling_scratch.faults import explained_loss_of_a_process
        from modeling_scratch.hub import push_run
        from modeling_scratch.preparation import make_accelerator
        from modeling_scratch.recipe import default_recipe, load_recipe
        from modeling_scratch.stopping import StopRequest
        from modeling_scratch.training import TrainingRun

        if not main_process or not sys.stderr.isatty():
            datasets.disable_progress_bars()
        recipe = load_recipe(config or default_recipe(evaluate), overrides)
        stop = StopRequest(max_minutes)
        accelerator = make_accelerator(None if evaluate else recipe)
        with explained_loss_of_a_process(accelerator):
            if evaluate:
                lines = []
                for name in [split, *(recipe.data.test_sets if split == "test" else [])]:
                    scores = score_model(recipe, evaluate, name, accelerator)
                    lines += [f"{evaluate}, {scores['sentences']:,} sentences of {name}", *describe_scores(scores)]
            elif dry_run:
                lines = list(describe_run(recipe, accelerator, processes))
            else:
                run = TrainingRun(
                    recipe, accelerator, resume_from or ("auto" if automatic else resume), overwrite, stop
                )
                run.train()
                lines = describe_result(run.finish())
        if main_process:
            print_whatever_happens("\n".join(lines))
            if not (evaluate or dry_run) and recipe.hub.repository is not None:
                print_whatever_happens(push_run(recipe).describe())


def describe_scores(scores: dict[str, Any]) -> list[str]:
    labels = {"bleu": "BLEU", "chrf": "chrF"}
    return [f"  {label} {scores[name]:.2f}  ({scores[f'{name}_signature']})" for name, label in labels.items()]


def describe_result(result: dict[str, Any]) -> list[str]:
    """What a user wants to know of a run that has ended, and what to type next."""
    lines = []
    for source, reference, translation in result["samples"]:
        lines += ["", f"  source       {source}", f"  reference    {reference}", f"  translation  {translation}"]
    minutes, rate = result["seconds"] / 60, result["target_tokens"] / result["seconds"]
    command = f"{os.path.relpath(sys.executable)} -m modeling_scratch.translate {shlex.quote(result['folder'])}"
    return [
        *lines,
        f"\n{result['step']:,} updates in {minutes:.1f} minutes of training, {rate:,.0f} target tokens a second",
        *(line for split, scores in result["scores"].items() for line in (f"On {split}:", *describe_scores(scores))),
        f"The model is in {result['folder']}. Next, translate a sentence of your own:",
        f"  echo {shlex.quote(result['samples'][0][0])} | {command}",
    ]


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
