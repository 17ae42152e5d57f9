"""`scratch evaluate`: score a model on a recipe's data."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ..errors import UserError
from ..inference.engine import EngineName
from .cli import Debug, check_confidence, is_main_process, one_line_errors, report, set_up_terminal

# Keys of the recipe's `evaluation` section that are arguments of `generate`.
_GENERATION = ("num_beams", "length_penalty", "max_new_tokens")


def main(
    model: Annotated[str, typer.Argument(help="a model folder or Hub name")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL]... [KEY=VALUE]...",
            help="more models, for an ensemble with it; recipe keys to change",
        ),
    ] = None,
    config: Annotated[
        str | None, typer.Option(help="the recipe whose data to score on (default: the run's own)")
    ] = None,
    split: Annotated[Literal["train", "validation", "test"], typer.Option(help="what to score it on")] = "test",
    curve: Annotated[
        Path | None, typer.Option(help="draw to this PNG file how the score grows if doubtful outputs are left out")
    ] = None,
    noise: Annotated[
        bool, typer.Option("--noise", help="also score it on sources with typing errors, in capitals, and so on")
    ] = False,
    engine: Annotated[
        EngineName,
        typer.Option(
            help="what translates; auto: on a CPU CTranslate2, which is faster, where it is installed and the scores "
            "are the same"
        ),
    ] = "auto",
    debug: Debug = False,
) -> None:
    """
    Score a model on a split of a recipe's data; `test` includes the further test sets. Nothing is written but --curve.

    Several models with the same tokenizers are scored as an ensemble, as `scratch translate` uses them. The data are
    those of the first one's recipe, and beam size, length penalty and maximum length those saved with it, unless keys
    change them.
    """
    set_up_terminal()
    with one_line_errors(debug, is_main_process()):
        import torch

        from ..data.sources import source_of
        from ..loading import load_confidence
        from ..recipe import find_recipe
        from ..recipe.reading import load_recipe, recipe_of_model
        from ..training.scoring import score_model
        from ..training.setup import make_accelerator

        others, overrides = split_arguments(overrides or [])
        models = [model, *others]
        path = find_recipe(config) if config is not None else recipe_of_model(model)
        recipe = load_recipe(path, [*overrides, *(["evaluation.noise=true"] if noise else [])])
        named = {override.partition("=")[0] for override in overrides}
        if "evaluation" in named:
            raise UserError("evaluation=...: name single keys, such as evaluation.num_beams=4")
        generation = {key: getattr(recipe.evaluation, key) for key in _GENERATION if f"evaluation.{key}" in named}
        # In the precision in which the run was scored: on a CPU, float32.
        scored_alike = config is None and torch.accelerator.is_available()
        as_run = recipe.model_copy(update={"trackers": []}) if scored_alike else None
        accelerator = make_accelerator(as_run, before=path.parent)
        if curve is not None:
            from ..run.curves import check_picture

            check_picture(curve)
            check_confidence(f"--curve {curve}", models, None if others else load_confidence(model))
        lines = []
        further = list(recipe.data.test_sets) if split == "test" else []
        splits = [split] if not further or source_of(split, recipe.data, recipe.seed) else []
        splits += further
        results = score_model(recipe, models, splits, accelerator, engine, **generation)
        for name, scores in results.items():
            lines += [
                f"{' + '.join(models)}, {scores['sentences']:,} sentences of {name}",
                *describe_scores(scores),
            ]
        if is_main_process():
            if curve is not None:
                from ..run.curves import confidence_figure, save

                save(confidence_figure(results), curve)
            report("\n".join(lines), None if curve is None else f"{curve} is written")


def split_arguments(arguments: list[str]) -> tuple[list[str], list[str]]:
    """
    Separate models from recipe overrides. A folder's name may contain an equals sign; a key contains no slash.

    Raises:
        UserError: an argument is neither.
    """
    overrides = [word for word in arguments if "=" in word and "/" not in word.partition("=")[0]]
    models = [word for word in arguments if word not in overrides]
    for name in models:
        if "/" not in name and not Path(name).is_dir():
            raise UserError(f"{name!r} is neither a model's folder or Hub name nor of the form KEY=VALUE")
    return models, overrides


def describe_scores(scores: dict[str, Any]) -> list[str]:
    from ..metrics import METRICS, describe_confidence, describe_heads, describe_noise, describe_score

    lines = [
        f"  {metric.title} {describe_score(scores, key)}  ({scores[f'{key}_signature']})"
        for key, metric in METRICS.items()
        if key in scores
    ]
    return lines + [
        f"  {line}" for line in (*describe_heads(scores), *describe_confidence(scores), *describe_noise(scores))
    ]
