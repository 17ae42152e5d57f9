"""
Set up the processes of a run, on one machine or many: their Accelerator, precision and threads; and make sure that they
would all train the same model.
"""

import logging
import os
import platform
import uuid
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import transformers
from accelerate import Accelerator
from accelerate.utils import (
    DistributedDataParallelKwargs,
    DistributedType,
    DynamoBackend,
    InitProcessGroupKwargs,
    LoggerType,
    ProjectConfiguration,
    broadcast_object_list,
    gather_object,
)
from transformers import PreTrainedModel

from .. import __version__
from ..errors import ProcessError, UserError
from ..recipe.reading import flat_recipe
from ..recipe.schema import Recipe
from ..run.folder import SEEN, TRACKING
from ..run.processes import on_main
from ..run.records import read_metrics

logger = logging.getLogger(__name__)

# How long processes wait for one another: for the main one that prepares data, writes or pushes, and for one that
# hangs. One that dies is noticed at once, by its closed connections or by the launcher.
TIMEOUT = timedelta(hours=2)

_OF_THIS_START = "of-this-start"  # a kind of URL, as torch.distributed calls it


def _meet(url: str, **options: Any) -> Iterator[tuple[torch.distributed.Store, int, int]]:
    """As at env://, in a part of the launcher's store that the processes of earlier starts did not use."""
    start = os.environ["TORCHELASTIC_RESTART_COUNT"]
    for store, rank, world_size in torch.distributed.rendezvous(f"env{url.removeprefix(_OF_THIS_START)}", **options):
        yield torch.distributed.PrefixStore(f"start {start}", store), rank, world_size


def _meeting_of_this_start() -> str | None:
    """
    Where the processes that torch's launcher has restarted together meet; None where they always do. The launcher of
    torch 2.13 keeps one store for all starts, although its processes rely on a new one for each
    (`torch.distributed.rendezvous._create_c10d_store`): they would read the addresses of dead processes, and fail, or
    wait for these.

    Raises:
        ProcessError: there are several launchers; each counts its own restarts, so nothing tells the starts apart.
    """
    is_restarted = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
    if not is_restarted or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    if os.environ.get("GROUP_WORLD_SIZE", "1") != "1":
        raise ProcessError(
            "restarted by the launcher, whose store still contains addresses of dead processes: on every machine, set "
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, launch with --rdzv_backend c10d, and start again with --auto-resume"
        )
    with suppress(RuntimeError):  # it is registered
        torch.distributed.register_rendezvous_handler(_OF_THIS_START, _meet)
    return f"{_OF_THIS_START}://"


def make_accelerator(recipe: Recipe | None = None, before: Path | None = None) -> Accelerator:
    """
    An Accelerator configured by `accelerate launch` or its config file, with the recipe's trackers. Its precision is
    the launcher's if there is one, else the recipe's.

    Args:
        before: the folder of a run whose precision is kept, such as one to resume.
    """
    trackers, project = recipe.trackers if recipe else [], None
    if trackers:
        project = ProjectConfiguration(logging_dir=str(Path(recipe.output_dir) / TRACKING))
    if unknown := set(trackers) - {tracker.value for tracker in LoggerType}:
        known = ", ".join(sorted(tracker.value for tracker in LoggerType))
        raise UserError(f"trackers: {', '.join(sorted(unknown))} is not known to Accelerate, which has {known}")
    accelerator = Accelerator(
        mixed_precision=choose_precision(recipe, before) if recipe else None,
        kwargs_handlers=[
            InitProcessGroupKwargs(timeout=TIMEOUT, init_method=_meeting_of_this_start()),
            DistributedDataParallelKwargs(gradient_as_bucket_view=True),  # saves 4 bytes per parameter
        ],
        cpu=not torch.accelerator.is_available(),
        log_with=trackers or None,
        project_config=project,
    )
    found = {str(getattr(tracker, "value", tracker)) for tracker in accelerator.log_with}
    if missing := sorted(set(trackers) - found - {"all"}):
        raise UserError(f"trackers: {', '.join(missing)} is not installed: pip install {' '.join(missing)}")
    if accelerator.distributed_type in (DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM):
        raise UserError(
            f"Accelerate is set to {accelerator.distributed_type}, which is not supported; to share a model among "
            "processes use configuration/accelerate/fsdp.yaml"
        )
    if accelerator.gradient_accumulation_steps != 1:
        raise UserError(
            f"Accelerate is set to {accelerator.gradient_accumulation_steps} gradient accumulation steps; set "
            "optimization.gradient_accumulation_steps in the recipe instead"
        )
    if accelerator.state.dynamo_plugin.backend != DynamoBackend.NO:
        raise UserError("Accelerate is set to compile; set compile=true in the recipe instead")
    if accelerator.device.type == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32 for float32 products
    return accelerator


_OF_LAUNCHER = "ACCELERATE_MIXED_PRECISION"  # set by `accelerate launch`, and read by Accelerate
_AS_ACCELERATE_NAMES_IT = {"float32": "no", "bf16": "bf16"}
_AS_PEOPLE_NAME_IT = {"no": "float32", "bf16": "bf16, with weights, updates and losses in float32"}


def choose_precision(recipe: Recipe, before: Path | None = None) -> str | None:
    """
    Choose and log a run's precision, as Accelerate names it; None if the launcher has chosen.

    Args:
        before: the folder of a run; `auto` then is the precision that it trained in last.
    """
    launched = os.environ.get(_OF_LAUNCHER)
    if launched is not None:
        if recipe.precision != "auto" and _AS_ACCELERATE_NAMES_IT[recipe.precision] != launched:
            logger.warning(f"precision: {launched}, the launcher's, and not the recipe's {recipe.precision}")
        return None
    if recipe.precision != "auto":
        return _AS_ACCELERATE_NAMES_IT[recipe.precision]
    records = [] if before is None else read_metrics(before)
    kept = next((record["mixed_precision"] for record in reversed(records) if "mixed_precision" in record), None)
    chosen = kept or ("bf16" if is_faster_in_bf16() else "no")
    choice = "chosen for this machine; set precision=bf16 or precision=float32 to choose"
    why = "as the run trained before" if kept else choice
    logger.info(f"precision: {_AS_PEOPLE_NAME_IT.get(chosen, chosen)} ({why})")
    return chosen


def is_faster_in_bf16() -> bool:
    """Whether this machine's GPU, or else its CPU, multiplies faster in bf16 than in float32."""
    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities()
    if capabilities.get("avx512_bf16") and not capabilities.get("amx_bf16"):
        # Intel's processors with AVX512-FP16 have AMX, which a virtual machine may hide, leaving AVX512-BF16 with
        # half the speed of float32. AMD's processors, the only ones with SSE4a, are faster in bf16.
        return bool(capabilities.get("sse4a")) or not capabilities.get("avx512_fp16")
    return bool(capabilities.get("amx_bf16"))


def keep_threads(before: int) -> None:
    """
    Let a resumed run compute with as many threads as before, since rounding depends on their number: fewer only if
    there are fewer here, or OMP_NUM_THREADS sets a different number.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(min(before, torch.get_num_threads()))
    if torch.get_num_threads() != before:
        logger.warning(f"threads: {torch.get_num_threads()} instead of {before}: the rounding differs from here on")


def describe_setup(accelerator: Accelerator, model: PreTrainedModel) -> dict[str, Any]:
    """What a model was trained with, for its card: devices, precision, parameters, versions."""
    device = accelerator.device
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        # platform.processor() is empty on many Linux systems; the kernel knows the name.
        cpuinfo = Path("/proc/cpuinfo")
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines() if cpuinfo.exists() else []
        named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        name = named[0] if named else platform.processor() or platform.machine()
    return {
        "device": device.type,
        "device_name": name,
        "processes": accelerator.num_processes,
        "mixed_precision": accelerator.mixed_precision,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        **versions(),
        **{name: version(name) for name in ("datasets", "tokenizers", "sacrebleu")},
    }


def versions() -> dict[str, str]:
    """Versions of the packages that a run's updates depend on."""
    return {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "modeling_scratch": __version__,
    }


# -- agreeing, before anything is written ------------------------------------------------------------------------------


def check_shared_folder(accelerator: Accelerator, folder: Path) -> None:
    """Raise UserError if a process does not see what the main one writes to the run's folder, which exists there."""
    token = folder / f"{SEEN}{uuid.uuid4().hex}"
    on_main(accelerator, token.touch)
    (name,) = broadcast_object_list([token.name])  # the main process's
    try:
        blind = gather_object([not _sees(folder, name)])
    finally:
        on_main(accelerator, lambda: token.unlink(missing_ok=True))
    if any(blind):
        raise UserError(
            f"process {blind.index(True)} does not see what process 0 writes to {folder.resolve()}: set output_dir to "
            "a folder that all nodes share"
        )


def _sees(folder: Path, name: str) -> bool:
    """Whether this process sees a file in a folder; not if it cannot read the folder, as after a failed mount."""
    try:
        return name in os.listdir(folder)
    except OSError:
        return False


def check_agreement(accelerator: Accelerator, recipe: Recipe, compiled: bool, data: str, updates: int) -> None:
    """
    Raise the same UserError on every process if they would not all train the same model.

    Args:
        data: the fingerprint of the training pairs.
        updates: the number of updates in the whole run.
    """
    paths = ("output_dir", "data.train_files", "data.validation_files", "data.test_", "data.mix")  # may differ
    facts = {key: value for key, value in flat_recipe(recipe).items() if not key.startswith(paths)} | versions()
    facts["data.mix"] = [source.model_dump(exclude={"files"}) for source in recipe.data.mix]
    facts |= {"mixed precision": accelerator.mixed_precision, "kind of device": accelerator.device.type}
    facts["whether layers are compiled"] = compiled
    everybody = gather_object([facts | {"training data, by SHA-256": data, "number of updates": updates}])
    for name, value in everybody[0].items():
        for rank, other in enumerate(facts_there.get(name) for facts_there in everybody):
            if other != value:
                raise UserError(
                    f"the processes do not agree on {name}: {value} on process 0, {other} on process {rank}; start all "
                    "with the same command, data and versions"
                )
