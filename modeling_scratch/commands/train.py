"""`scratch train`: train a model from a recipe, resume a run, or describe what a run would do."""

import importlib.util
import logging
import os
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import UserError
from .cli import LONGEST_TIME, Debug, check_number, is_main_process, one_line_errors, report, reporting, set_up_terminal
from .evaluate import describe_scores

logger = logging.getLogger(__name__)

Overrides = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="recipe keys to change")]
Config = Annotated[
    str | None, typer.Option(help="a recipe: a YAML file, or a name from `scratch recipes` (default: embedded)")
]


def main(
    overrides: Overrides = None,
    config: Config = None,
    resume: Annotated[bool, typer.Option("--resume", help="resume the run in output_dir")] = False,
    auto_resume: Annotated[
        bool, typer.Option("--auto-resume", help="the same, or begin a run if there is nothing to resume")
    ] = False,
    resume_from: Annotated[
        str | None,
        typer.Option(help="resume from this checkpoint, such as step-0000500, and delete later ones"),
    ] = None,
    max_minutes: Annotated[
        float | None,
        typer.Option(min=0, help="after this many minutes, write a checkpoint and exit with code 75"),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace the run in output_dir")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="describe the run, without training")] = False,
    processes: Annotated[
        int | None, typer.Option(min=1, max=10_000, help="how many --dry-run assumes (default: as launched)")
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="print where the time of updates goes, without training; write a trace for Chrome here"
        ),
    ] = None,
    debug: Debug = False,
) -> None:
    """
    Train a model. For example: scratch train --config multi30k-en-de seed=1

    `scratch recipes` lists the recipes that come with this package; their models are in configuration/models. The keys
    of a recipe, each with its meaning and default, are in modeling_scratch/recipe/schema.py; --dry-run prints a recipe
    with all of them.
    """
    set_up_terminal()
    with one_line_errors(
        debug, is_main_process(), "interrupted; if a checkpoint was written, --resume continues from it"
    ):
        texts = (("--config", config), ("--resume-from", resume_from), ("--profile", profile))
        for flag, given in texts:
            if given == "":
                raise UserError(f"{flag} is empty")
        how = {"--resume": resume, "--auto-resume": auto_resume, "--resume-from": resume_from, "--overwrite": overwrite}
        how |= {"--dry-run": dry_run, "--profile": profile}
        given = [flag for flag, value in how.items() if value]
        if len(given) > 1 and given != ["--resume", "--resume-from"]:
            raise UserError(f"{' and '.join(given)} do not go together; give one of them")
        if max_minutes is not None and (dry_run or profile):
            raise UserError("--max-minutes stops training; it does not go with --dry-run or --profile")
        check_number("--max-minutes", max_minutes, LONGEST_TIME)
        if processes and not dry_run:
            raise UserError("--processes is for --dry-run only; accelerate launch starts processes")
        start = "auto" if auto_resume else resume_from or resume
        _train_or_describe(overrides or [], config, start, overwrite, max_minutes, dry_run, processes, profile)


def _train_or_describe(
    overrides: list[str],
    config: str | None,
    resume: bool | str,
    overwrite: bool,
    max_minutes: float | None,
    dry_run: bool,
    processes: int | None,
    profile: str | None,
) -> None:
    from ..recipe import find_recipe, shipped_recipes
    from ..recipe.reading import load_recipe
    from ..run.processes import StopRequest, on_main
    from ..training.finish import is_finished
    from ..training.setup import make_accelerator
    from ..training.train import train

    for word in overrides:
        if word in shipped_recipes() or ("=" not in word and word.endswith((".yaml", ".yml"))):
            raise UserError(f"{word!r} is not KEY=VALUE; for a recipe: --config {shlex.quote(word)}")
    path = find_recipe(config) if config else shipped_recipes()["embedded"]
    recipe = load_recipe(path, overrides)
    if not any(override.startswith("output_dir=") for override in overrides):
        recipe.output_dir = _folder_meant(path, recipe.output_dir, resume, overwrite)
    hub, stop = recipe.hub, StopRequest(max_minutes)
    accelerator = make_accelerator(recipe, before=Path(recipe.output_dir) if resume else None)
    if dry_run:
        from ..apps.experiments.dry_run import describe_run

        lines = list(describe_run(recipe, accelerator, processes))
    elif profile:
        from ..apps.experiments.profile import profile_updates

        lines = list(profile_updates(recipe, accelerator, Path(profile)))
    elif resume == "auto" and on_main(accelerator, lambda: is_finished(recipe)):
        lines = [f"{recipe.output_dir} is finished; --resume alone scores it again"]
    else:
        push = None
        if hub.repository is not None:
            from ..hub.push import check_destination, try_push

            on_main(accelerator, lambda: check_destination(recipe))  # rather now than after the training
            push = partial(try_push, recipe) if hub.push == "best" else None
        lines = describe_result(train(recipe, accelerator, resume, overwrite, stop, push))
    if not is_main_process():
        return
    if dry_run or profile:
        report("\n".join(lines), f"{profile} is written" if profile else None)
        return
    with reporting("the run is finished") as reported:
        reported += lines
        if accelerator.device.type == "cpu":
            keep_converted(recipe.output_dir)
        if hub.repository is not None:
            from ..hub.push import push_run

            reported.append(push_run(recipe).describe())


def _folder_meant(path: Path, named: str, resume: bool | str, overwrite: bool) -> str:
    """
    The folder that a recipe names; to resume from the recipe of a run that was moved or copied, the run's own folder.

    Raises:
        UserError: the run's own folder or the named one would be resumed or replaced, and nothing says which is meant.
    """
    from ..run.folder import RunFolder
    from ..run.records import RECIPE

    folder = path.parent
    if not (resume or overwrite) or path.name != RECIPE or folder.resolve() == Path(named).resolve():
        return named
    if not RunFolder(folder).is_run():
        return named
    if overwrite or resume == "auto":
        raise UserError(
            f"{path} is the recipe of the run in {folder}, but its output_dir is {named}; say which folder is meant: "
            f"{shlex.quote(f'output_dir={folder}')} or {shlex.quote(f'output_dir={named}')}"
        )
    logger.info(f"output_dir: {folder}, where this recipe is, and not {named}, for which it was written")
    return str(folder)


def keep_converted(folder: str) -> None:
    """Convert a model for the first `scratch translate`, which would have to import PyTorch for it."""
    if importlib.util.find_spec("ctranslate2") is None:
        return
    try:
        from ..apps.convert.ctranslate2 import write_unlogged
        from ..inference.ctranslate2_engine import converted, has_gpu

        if not has_gpu():
            converted(folder, write_unlogged)
    # As in `ctranslate2_engine`; what it cannot express, PyTorch translates, and `scratch translate` says so.
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        logger.info(f"{folder} was not converted for CTranslate2: {error}")


_CALLED = {"translation": "output"}  # fields of a sample that are called otherwise


def describe_result(result: dict[str, Any]) -> list[str]:
    """The lines that report a finished run, and what to run next."""
    lines = []
    for sample in result["samples"]:
        lines += ["", *(f"  {_CALLED.get(field, field):<9}  {text}" for field, text in sample.items())]
    step, minutes, rate = result["step"], result["seconds"] / 60, result["target_tokens"] / result["seconds"]
    lines.append(f"\n{step:,} updates in {minutes:.1f} minutes of training, {rate:,.0f} target tokens a second")
    for split, scores in result["scores"].items():
        lines += [f"On {split}:", *describe_scores(scores)]
        if before := result["before"].get(split):
            lines += ["  before fine-tuning:", *(f"  {line}" for line in describe_scores(before))]
    command = f"{os.path.relpath(sys.executable)} -m modeling_scratch translate {shlex.quote(result['folder'])}"
    first = next((sample for sample in result["samples"] if sample.get("features")), result["samples"][0])
    command += f" --features {shlex.quote(first['features'])}" if first.get("features") else ""
    return [
        *lines,
        f"The model is in {result['folder']}. Next, try a text of your own:",
        f"  echo {shlex.quote(first['source'])} | {command}",
    ]
