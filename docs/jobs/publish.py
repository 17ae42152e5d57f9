"""
Publish a model that this project has scores for: check that a run is that model, then call `scratch upload`.

    python docs/jobs/publish.py embedded runs/embedded user/name         # only look: the files, their sizes, the card
    python docs/jobs/publish.py embedded runs/embedded user/name --push

The run must have the recipe of that name, the test set and the way of scoring of docs/quality.md, and its BLEU must be
within three standard deviations of the mean of the seeds there.
"""

import hashlib
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from modeling_scratch.commands import upload
from modeling_scratch.commands.cli import one_line_errors
from modeling_scratch.data.sources import load_split
from modeling_scratch.data.tokenizer import texts
from modeling_scratch.errors import UserError
from modeling_scratch.hub.push import PushOptions
from modeling_scratch.recipe import find_recipe
from modeling_scratch.recipe.reading import MAY_DIFFER_WITHIN_RUN, differing_keys, load_recipe, recipe_of_model
from modeling_scratch.run.records import RECIPE, run_of
from modeling_scratch.training.scoring import score_model
from modeling_scratch.training.setup import make_accelerator


@dataclass(frozen=True)
class Expected:
    """
    Args:
        bleu: of runs that differ only in their seed (docs/lab/quality.md).
        references: the SHA-256 of the test set's references, one per line.
        signature: how BLEU was computed.
    """

    bleu: tuple[float, ...]
    references: str
    signature: str = "nrefs:1|bs:1000|seed:12345|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0|lines:split"

    @property
    def range(self) -> tuple[float, float]:
        mean, tolerance = statistics.mean(self.bleu), 3 * statistics.stdev(self.bleu)
        return mean - tolerance, mean + tolerance


EXPECTED = {
    "embedded": Expected(
        (99.40, 99.31, 99.66),
        # of seed 0: the test sentences of the embedded corpus depend on the seed
        "6f8c9aad56775eebd6512211375cbd52c74f28003fc0d2299046d7054f893c1e",
    ),
    "multi30k-en-de": Expected(
        (40.95, 40.96, 40.79, 41.47),
        "bb3e48712d8d4f8d6e16352ea830d2b3c64ff50439cb6e02486e02f8475d138e",  # test_2016_flickr
    ),
}
MAY_DIFFER = MAY_DIFFER_WITHIN_RUN | {"seed"}  # as the seeds of `Expected.bleu` do


def check(name: str, folder: Path) -> str:
    """What was found. UserError if the folder does not hold the model of this name, with its scores."""
    if name not in EXPECTED:
        raise UserError(f"{name!r}: there are expected scores of {', '.join(EXPECTED)}")
    if not (folder / RECIPE).is_file():
        raise UserError(f"{folder} is not the folder of a run: it has no {RECIPE}")
    run_of(folder)  # which a push needs; scoring takes longer
    expected, recipe = EXPECTED[name], load_recipe(recipe_of_model(str(folder)))
    if differing := set(differing_keys(recipe, load_recipe(find_recipe(name)))) - MAY_DIFFER:
        raise UserError(f"{folder}: its recipe is not {name}: {', '.join(sorted(differing))} differ")
    references = texts(load_split(recipe.data, recipe.seed, "test"))[1]
    if hashlib.sha256("\n".join(references).encode()).hexdigest() != expected.references:
        raise UserError(
            f"{folder}: its test set is not the one that the expected scores of {name} are of (that of `embedded` "
            "depends on the seed; train with seed=0)"
        )
    scores = score_model(recipe, [str(folder)], ["test"], make_accelerator())["test"]
    if scores["bleu_signature"] != expected.signature:
        raise UserError(f"BLEU is computed as {scores['bleu_signature']}, and was as {expected.signature}")
    low, high = expected.range
    found = f"BLEU {scores['bleu']:.2f} on {len(references):,} sentences; expected: {low:.2f} to {high:.2f}"
    if not low <= scores["bleu"] <= high:
        raise UserError(f"{folder}: {found}")
    return found


def main(
    name: Annotated[str, typer.Argument(help=f"a recipe: {', '.join(EXPECTED)}")],
    folder: Annotated[Path, typer.Argument(help="a finished run of that recipe")],
    repo_id: Annotated[str, typer.Argument(help="user/name")],
    push: Annotated[bool, typer.Option("--push", help="push it; otherwise only show what would be pushed")] = False,
) -> None:
    """Check that a run is the model that this project has scores for, and push it to the Hub."""
    with one_line_errors(debug=False):
        PushOptions(repo_id)  # an error in its name comes before scoring, too
        print(check(name, folder))
    upload.main(folder, repo_id, dry_run=not push)


if __name__ == "__main__":
    typer.run(main)
