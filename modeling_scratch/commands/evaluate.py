"""`scratch evaluate`: score a model on a recipe's data."""

from typing import Annotated, Any, Literal

import typer

from ..cli import is_main_process, one_line_errors, print_whatever_happens, set_up_terminal


def main(
    model: Annotated[str, typer.Argument(help="a model folder or Hub name")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="recipe keys to change")
    ] = None,
    config: Annotated[
        str | None, typer.Option(help="the recipe whose data to score on (default: the run's own)")
    ] = None,
    split: Annotated[Literal["train", "validation", "test"], typer.Option(help="what is translated")] = "test",
    debug: Annotated[bool, typer.Option("--debug", help="show the traceback of an error")] = False,
) -> None:
    """Score a model on a split of a recipe's data; `test` includes the further test sets. Nothing is written."""
    set_up_terminal()
    with one_line_errors(debug, is_main_process()):
        from ..recipe.reading import find_recipe, load_recipe, recipe_of_model
        from ..runs.faults import explained_loss_of_a_process
        from ..runs.processes import make_accelerator
        from ..training.evaluation import score_model

        recipe = load_recipe(find_recipe(config) if config else recipe_of_model(model), overrides)
        accelerator = make_accelerator()
        lines = []
        with explained_loss_of_a_process(accelerator):
            splits = [split, *(recipe.data.test_sets if split == "test" else [])]
            for name, scores in score_model(recipe, model, splits, accelerator).items():
                lines += [f"{model}, {scores['sentences']:,} sentences of {name}", *describe_scores(scores)]
        if is_main_process():
            print_whatever_happens("\n".join(lines))


def describe_scores(scores: dict[str, Any]) -> list[str]:
    from ..metrics import METRICS, describe_score

    return [
        f"  {metric.title} {describe_score(scores, key)}  ({scores[f'{key}_signature']})"
        for key, metric in METRICS.items()
        if key in scores
    ]
