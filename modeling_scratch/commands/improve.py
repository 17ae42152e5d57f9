"""`scratch improve`: train a better model from a finished run's own data."""

import shlex
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ..inference.engine import EngineName
from . import train as training
from .cli import (
    LONGEST_TIME,
    Debug,
    beside,
    check_number,
    is_main_process,
    one_line_errors,
    report,
    reporting,
    set_up_terminal,
)

_GREATEST_LENGTH = 1000


def main(
    run: Annotated[Path, typer.Argument(help="the folder of a finished run")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="recipe keys to change in the improved model")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="the improved model's folder (default: RUN-improved)")] = None,
    seeds: Annotated[int, typer.Option(min=1, max=20, help="models of each direction; the run itself is one")] = 2,
    length: Annotated[
        float, typer.Option(min=0.1, help="the improved model's updates, in multiples of the run's")
    ] = 2.0,
    source_text: Annotated[
        list[Path] | None, typer.Option(help="a file of further text in the source language, a sentence a line")
    ] = None,
    target_text: Annotated[
        list[Path] | None, typer.Option(help="the same in the target language: it is back-translated")
    ] = None,
    engine: Annotated[EngineName, typer.Option(help="what translates")] = "auto",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="list the stages, with times; run none")] = False,
    max_minutes: Annotated[
        float | None, typer.Option(min=0, help="then exit with 75; repeat the command to resume")
    ] = None,
    debug: Debug = False,
) -> None:
    """
    Train a better model of the same size from the run's own pairs: models of both directions, with several seeds,
    translate them, and the improved model learns from the originals and all translations.

    This takes several times as long as the run. If it is interrupted, the same command resumes it. Besides
    the improved model it writes OUTPUT-work, which may be deleted once that is finished.
    """
    set_up_terminal()
    with one_line_errors(debug, is_main_process(), "interrupted; repeat the command to resume"):
        from ..apps.experiments.improve import ImprovementOptions, ImprovementPlan, improve, stages
        from ..hub.push import check_destination, push_run, try_push
        from ..run.processes import StopRequest, on_main
        from ..training.setup import make_accelerator

        check_number("--length", length, _GREATEST_LENGTH)
        check_number("--max-minutes", max_minutes, LONGEST_TIME)
        monolingual = (tuple(source_text or []), tuple(target_text or []))
        more = (length, tuple(overrides or []), engine)
        plan = ImprovementPlan(ImprovementOptions(run, output or beside(run, "improved"), seeds, *monolingual, *more))
        output, stop = plan.options.out, StopRequest(max_minutes)
        accelerator = make_accelerator(plan.final, before=run)
        found = on_main(accelerator, lambda: stages(plan, accelerator))
        described = "\n".join(_describe(found, plan.records.machine.get("device_name")))
        if dry_run and is_main_process():
            report(described)
        elif is_main_process():
            with suppress(OSError):  # the work does not depend on it
                print(described, flush=True)
        if plan.final.hub.repository is not None and not dry_run:
            on_main(accelerator, lambda: check_destination(plan.final))
        push = partial(try_push, plan.final) if plan.final.hub.push == "best" else None
        result = None if dry_run else improve(plan, accelerator, stop, push)
        if is_main_process() and not dry_run:
            with reporting("the run is finished") as lines:
                lines += [f"{output} is finished"] if result is None else training.describe_result(result)
                lines.append("  " + shlex.join(["scratch", "compare", str(run), str(output)]))
                if plan.final.hub.repository is not None:
                    lines.append(push_run(plan.final).describe())


def _describe(plan: list[tuple[str, float | None]], device: str | None) -> list[str]:
    """A line for each stage with its estimated time, and one for the total; `device`: what the run trained on."""
    from ..run.log import format_duration

    width = max(len(what) for what, _ in plan)
    lines = [f"{what:<{width}}  {'done' if left is None else f'about {format_duration(left)}'}" for what, left in plan]
    total = sum(left for _, left in plan if left is not None)
    rest = f"{'all that is left':<{width}}  about {format_duration(total)}, evaluations not counted"
    return [*lines, f"{rest}, if training takes as long as the run's took{f' on {device}' if device else ''}"]
