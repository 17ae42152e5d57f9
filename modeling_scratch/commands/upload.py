"""`scratch upload`: share a model folder on the Hugging Face Hub."""

import logging
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import UserError
from ..files import temporary_folder
from ..recipe import SECONDS_TO_ANSWER, SECONDS_TO_PUSH
from .cli import Debug, log_to_terminal, one_line_errors, report, reporting

if TYPE_CHECKING:
    from ..hub.push import Prepared, PushOptions


def main(
    folder: Annotated[Path, typer.Argument(help="written by scratch train, scratch convert or save_pretrained")],
    repo_id: Annotated[str | None, typer.Argument(help="user/name; not needed with --check-only")] = None,
    private: Annotated[bool, typer.Option("--private", help="make a new repository private")] = False,
    revision: Annotated[str | None, typer.Option(help="a branch, created if needed (default: main)")] = None,
    create_pr: Annotated[bool, typer.Option("--create-pr", help="open a pull request instead of committing")] = False,
    tag: Annotated[str | None, typer.Option(help="a name for this version, e.g. v1.0")] = None,
    message: Annotated[str, typer.Option(help="the commit message")] = "Upload model",
    license: Annotated[
        str | None, typer.Option(help="the model's license (default for a run from random weights: apache-2.0)")
    ] = None,
    languages: Annotated[
        tuple[str, str] | None, typer.Option(help="source and target codes, e.g. en de (default: as the folder says)")
    ] = None,
    author: Annotated[str | None, typer.Option(help="the model's author, for its card")] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="replace files or a card that others have pushed or edited")
    ] = False,
    space: Annotated[
        bool, typer.Option("--space", help="also push a page that runs it, as a static Space of the same name")
    ] = False,
    marian: Annotated[
        str | None, typer.Option(help="also push it as a Marian model, which needs no remote code, to this user/name")
    ] = None,
    endpoint_handler: Annotated[
        bool, typer.Option("--endpoint-handler", help="also push a handler.py for Inference Endpoints")
    ] = False,
    benchmark: Annotated[
        tuple[str, str] | None,
        typer.Option(
            help="also report the test set's score to a leaderboard: TASK (its id in the data set's eval.yaml) METRIC",
            metavar="TASK METRIC",
        ),
    ] = None,
    timeout: Annotated[float, typer.Option(help="seconds to wait for each response of the Hub")] = SECONDS_TO_ANSWER,
    deadline: Annotated[float, typer.Option(help="seconds that the whole upload may take")] = SECONDS_TO_PUSH,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the files, sizes and card; push nothing")] = False,
    check_only: Annotated[bool, typer.Option("--check-only", help="only check, which runs the folder's code")] = False,
    debug: Debug = False,
) -> None:
    """
    Check a model folder by loading it as a stranger would, which runs its Python files, and push it as one commit.
    """
    log_to_terminal(logging.INFO)
    unsure = "interrupted; the repository is at the old revision or the new one: run the same command again"
    with one_line_errors(debug, interrupted=unsure):
        from ..hub.push import PushOptions

        if repo_id is None and not check_only:
            raise UserError("which repository? scratch upload FOLDER user/name")
        options = PushOptions(
            "user/name" if repo_id is None else repo_id,
            private=private,
            revision=revision,
            create_pr=create_pr,
            tag=tag,
            message=message,
            license=license,
            overwrite=overwrite,
            timeout=timeout,
            deadline=deadline,
            languages=languages,
            author=author,
            space=space,
            marian=marian,
            endpoint_handler=endpoint_handler,
            benchmark=benchmark,
        )
        if check_only or dry_run:
            _only_look(folder, options, dry_run)
        else:
            _push(folder, options)


def _push(folder: Path, options: "PushOptions") -> None:
    """Push the model and what is asked for beside it, once all of it has been checked."""
    from ..hub.push import prepared_push

    with ExitStack() as stack:
        model = stack.enter_context(prepared_push(folder, options))
        pushes = [model]
        if options.marian is not None:
            from ..apps.convert.marian_repository import prepared_marian

            # First, since the model's card links to it.
            pushes.insert(0, stack.enter_context(prepared_marian(folder, options, model.prepared.card)))
        if options.space:
            from ..apps.web.space import prepared_space

            pushes.append(stack.enter_context(prepared_space(folder, options)))
        with reporting("the model is pushed") as lines:
            for push in pushes:
                lines.append(push.send().describe())


def _only_look(folder: Path, options: "PushOptions", dry_run: bool) -> None:
    """Print the results of the check; for a dry run, also what would be pushed."""
    from ..hub.push import PastPushes, prepare_push

    past = PastPushes.read(folder, options)
    with temporary_folder() as copy:
        model = prepare_push(folder, options, copy, past)
        lines = _described(model, options.repo_id, dry_run)
    if options.space and dry_run:
        lines.append(f"\nIts page would go to a Space of that name; to see it: scratch export web {folder} OUT")
    if options.marian is not None:
        from ..apps.convert.marian_repository import prepare_marian

        with temporary_folder() as copy:
            marian = prepare_marian(options.repo_id, model.card, folder, options.of_marian(), copy, past)
            lines += _described(marian, options.marian, dry_run)
    report("\n".join(lines))


def _described(prepared: "Prepared", repo_id: str, dry_run: bool) -> list[str]:
    """Lines on what was checked, and for a dry run on what would be pushed."""
    lines = list(prepared.findings)
    if dry_run:
        sizes = prepared.sizes()
        lines.append(f"\n{len(sizes)} files, {sum(sizes.values()):,} bytes, would go to {repo_id}:")
        lines += [f"{size:>12,}  {name}" for name, size in sizes.items()]
        lines.append(f"\nThe card, without edits made on the Hub:\n\n{prepared.card}")
    return lines
