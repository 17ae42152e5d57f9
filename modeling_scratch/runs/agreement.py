"""Check that all processes of a run see the same folder and would train the same model."""

import os
import time
import uuid
from contextlib import suppress

from accelerate import Accelerator
from accelerate.utils import gather_object

from ..errors import UserError
from ..recipe.reading import flat_recipe
from ..recipe.schema import Recipe
from .folder import SEEN, RunFolder
from .processes import on_main, versions

_SECONDS_TO_SEE = 20  # how long a file from another node may take to appear
# Paths may differ between nodes.
_PATHS = ("output_dir", "data.train_files", "data.validation_files", "data.test_", "data.mix")


def check_folder(accelerator: Accelerator, folder: RunFolder) -> None:
    """UserError if a process does not see what the main one writes to the run's folder."""
    token = folder.path / f"{SEEN}{uuid.uuid4().hex}"

    def leave() -> str:
        folder.make()
        token.touch()
        return token.name

    def remove() -> None:
        token.unlink(missing_ok=True)
        folder.remove_if_empty()

    name = on_main(accelerator, leave)
    try:
        blind = gather_object([not _sees(folder, name)])
    finally:
        on_main(accelerator, remove)
    if any(blind):
        raise UserError(
            f"process {blind.index(True)} does not see what process 0 writes to {folder.path.resolve()}: set "
            "output_dir to a folder that all nodes share"
        )


def _sees(folder: RunFolder, name: str) -> bool:
    """Whether this process sees the named file, allowing for the delay of a network file system."""
    for _ in range(_SECONDS_TO_SEE):
        with suppress(OSError):
            if name in os.listdir(folder.path):
                return True
        time.sleep(1)
    return False


def check_run(accelerator: Accelerator, recipe: Recipe, compiled: bool, data: str, updates: int) -> None:
    """
    Raise the same UserError on every process if they would not all train the same model.

    Args:
        data: the fingerprint of the training pairs.
        updates: the number of updates in the whole run.
    """
    facts = {key: value for key, value in flat_recipe(recipe).items() if not key.startswith(_PATHS)} | versions()
    facts["data.mix"] = [each.model_dump(exclude={"files"}) for each in recipe.data.mix]
    facts |= {"mixed precision": accelerator.mixed_precision, "kind of device": accelerator.device.type}
    facts["whether layers are compiled"] = compiled
    everybody = gather_object([facts | {"training data, by SHA-256": data, "number of updates": updates}])
    for name, value in everybody[0].items():
        for rank, other in enumerate(each.get(name) for each in everybody):
            if other != value:
                raise UserError(
                    f"the processes do not agree on {name}: {value} on process 0, {other} on process {rank}; start all "
                    "with the same command, data and versions"
                )
