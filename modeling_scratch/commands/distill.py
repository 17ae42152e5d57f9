"""`scratch distill`: train a fast student on what models translate."""

import shlex
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ..errors import UserError
from ..inference.engine import EngineName
from . import train as training
from .cli import LONGEST_TIME, Debug, beside, check_number, is_main_process, one_line_errors, reporting, set_up_terminal
from .evaluate import split_arguments


def main(
    teacher: Annotated[
        str,
        typer.Argument(
            help="a folder or Hub name: of this project, or another encoder-decoder model of Transformers (OPUS-MT, "
            "M2M100, NLLB); or a folder in CTranslate2's format with the model's tokenizer"
        ),
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TEACHER]... [KEY=VALUE]...",
            help="more teachers, for an ensemble of this project's models; recipe keys to change in the student",
        ),
    ] = None,
    config: Annotated[
        str | None, typer.Option(help="the recipe with the data and the training (default: the teacher's run)")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="the student's folder (default: TEACHER-student)")] = None,
    n_best: Annotated[
        int, typer.Option(min=1, max=100, help="how many translations of each sentence the student learns from")
    ] = 4,
    original: Annotated[
        float, typer.Option(help="the share of the pairs that keep their own translation, less than 1")
    ] = 0.2,
    source_text: Annotated[
        list[Path] | None, typer.Option(help="a file of further text in the source language, a sentence a line")
    ] = None,
    work: Annotated[
        Path | None, typer.Option(help="the folder of the teachers' translations (default: OUTPUT-work)")
    ] = None,
    engine: Annotated[EngineName, typer.Option(help="what runs teachers of this project")] = "auto",
    max_minutes: Annotated[
        float | None, typer.Option(min=0, help="then exit with 75; repeat the command to resume")
    ] = None,
    debug: Debug = False,
) -> None:
    """
    Train a student: a model that translates several times as fast by greedy search as its teacher does by beam search,
    and nearly as well, since it learns from the teacher's translations. They are made of the training sources of the
    recipe, and of --source-text.

    The student has the shape of configuration/models/student.yaml unless model.config or model.overrides say otherwise,
    and the rest of the recipe. If it is interrupted, the same command resumes it. OUTPUT-work has the translations,
    which a student of another shape can use again (--work); it may be deleted once the student is finished.
    """
    set_up_terminal()
    with one_line_errors(debug, is_main_process(), "interrupted; repeat the command to resume"):
        from ..apps.experiments.distill import DistillationOptions, DistillationPlan, distill
        from ..hub.push import check_destination, push_run, try_push
        from ..run.processes import StopRequest, on_main
        from ..training.setup import make_accelerator

        check_number("--max-minutes", max_minutes, LONGEST_TIME)
        more, overrides = split_arguments(arguments or [])
        teachers = (teacher, *more)
        if output is None and not Path(teacher).is_dir():
            raise UserError(f"{teacher} is not a folder; name the student's with --output")
        output = output or beside(Path(teacher), "student")
        texts = tuple(source_text or ())
        plan = DistillationPlan(
            DistillationOptions(teachers, output, config, n_best, original, texts, work, tuple(overrides))
        )
        stop, hub = StopRequest(max_minutes), plan.final.hub
        accelerator = make_accelerator(plan.final)
        if hub.repository is not None:
            on_main(accelerator, lambda: check_destination(plan.final))
        push = partial(try_push, plan.final) if hub.push == "best" else None
        result = distill(plan, accelerator, stop, engine, push)
        if is_main_process():
            with reporting("the run is finished") as lines:
                lines += [f"{output} is finished"] if result is None else training.describe_result(result)
                if (Path(teacher) / "metrics.jsonl").is_file():
                    lines.append("  " + shlex.join(["scratch", "compare", teacher, str(output)]))
                if hub.repository is not None:
                    lines.append(push_run(plan.final).describe())
