"""Train a translator from sentence pairs by a recipe, continue a stopped run, or score a model."""

import logging
import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from modeling_scratch.cli import default_recipe, log_to_terminal, one_line_errors
from modeling_scratch.recipe import load_recipe

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
    dry_run: Annotated[
        int | None, typer.Option(min=1, metavar="PROCESSES", help="say what so many would do; do not train")
    ] = None,
    split: Annotated[Literal["train", "validation", "test"], typer.Option(help="what --evaluate scores")] = "test",
    debug: Annotated[bool, typer.Option("--debug", help="show the traceback of an error")] = False,
) -> None:
    """Train a translator. For example: python train.py --config configuration/recipes/multi30k-en-de.yaml seed=1"""
    main_process = os.environ.get("RANK", "0") == "0"
    log_to_terminal(logging.INFO if main_process else logging.ERROR)
    # --resume is a flag, so what stands after it is among the other words.
    automatic = resume and "auto" in (overrides or [])
    overrides = [each for each in overrides or [] if not automatic or each != "auto"]
    with one_line_errors(debug, main_process, "interrupted; if a checkpoint was written, --resume continues from it"):
        if evaluate and (resume or resume_from or overwrite):
            raise ValueError("--evaluate writes nothing: --resume and --overwrite do not go with it")
        if resume_from == "auto":
            raise ValueError("--resume-from takes the name of a checkpoint; --resume auto continues a run or begins it")
        if dry_run and (evaluate or resume or resume_from or overwrite):
            raise ValueError("--dry-run writes nothing: --evaluate, --resume and --overwrite do not go with it")
        recipe = load_recipe(config or default_recipe(evaluate), overrides)

        from modeling_scratch.dry_run import describe_run
        from modeling_scratch.evaluation import score_model
        from modeling_scratch.hub import push_run
        from modeling_scratch.preparation import make_accelerator
        from modeling_scratch.stopping import StopRequest
        from modeling_scratch.training import TrainingRun

        if evaluate:
            scores = score_model(recipe, evaluate, split, make_accelerator())
            if main_process:
                print(f"{evaluate}, {scores['sentences']:,} sentences of {split}")
                print_scores(scores)
            return
        if dry_run:
            for line in describe_run(recipe, make_accelerator(recipe), dry_run):
                if main_process:
                    print(line)
            return
        whence = resume_from or ("auto" if automatic else resume)
        run = TrainingRun(recipe, make_accelerator(recipe), whence, overwrite, StopRequest(max_minutes))
        run.train()
        result = run.finish()
        if main_process:
            report(result)
            if recipe.hub.repository is not None:
                print(f"pushed: {push_run(recipe).url}")


def print_scores(scores: dict) -> None:
    for name, label in (("bleu", "BLEU"), ("chrf", "chrF")):
        print(f"  {label} {scores[name]:.2f}  ({scores[f'{name}_signature']})")


def report(result: dict) -> None:
    for source, reference, translation in result["samples"]:
        print(f"\n  source       {source}\n  reference    {reference}\n  translation  {translation}")
    minutes, rate = result["seconds"] / 60, result["target_tokens"] / result["seconds"]
    print(f"\n{result['step']:,} updates in {minutes:.1f} minutes of training, {rate:,.0f} target tokens a second")
    print(f"On the {result['split']} split:")
    print_scores(result)
    print(f"The model is in {result['folder']}. Next, translate a sentence of your own:")
    command = f"{os.path.relpath(sys.executable)} -m modeling_scratch.translate {shlex.quote(result['folder'])}"
    print(f"  echo {shlex.quote(result['samples'][0][0])} | {command}")


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
