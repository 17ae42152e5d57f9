"""Profile some updates of a run: a table of what their time is spent on, and a trace."""

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from accelerate import Accelerator
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from ...files import check_new_output, new_output, temporary_folder
from ...recipe.schema import Recipe
from ...run.processes import on_main
from ...training.preparation import prepare
from ...training.train import total_updates
from .dry_run import updates_to_measure

# What a kernel (on a GPU) or an operator (on a CPU) is, by the first pattern that its name matches.
_KINDS = {
    "attention": r"sdpa|fmha|flash|cudnn.*attention|scaled_dot_product",
    "matrix products": r"gemm|nvjet|cutlass|xmma|cublas|splitK|^aten::(mm|bmm|addmm|baddbmm|linear)|mkldnn_linear",
    "compiled layers": r"triton",
    "optimizer": r"multi_tensor|[Ff]used_?[Aa]dam",
    "softmax": r"[Ss]oft_?[Mm]ax",
    "norms": r"[Ll]ayer_?[Nn]orm|rms_?norm",
    "embeddings": r"embedding|index_select|indexSelect|index_add|indexFunc",
    "copies": r"[Mm]emcpy|[Mm]emset|copy_|CatArray|::cat\b|direct_copy",
    "random numbers": r"dropout|random|philox|distribution",
    "element-wise": r"elementwise|vectorized|reduce_kernel|"
    r"^aten::(add|sub|mul|div|exp|log|neg|pow|r?sqrt|sum|mean|a?max|where|ge|relu|silu|threshold|addcmul|fill|zero)",
}
_OTHER = "other"


def profile_updates(recipe: Recipe, accelerator: Accelerator, path: Path) -> Iterator[str]:
    """
    Yield a table of what the time of some updates is spent on: the kernels of a GPU, or the operators of a CPU, by
    kind. Nothing is trained. All processes call this together; the main process writes the trace, which is its own.

    Args:
        path: of a new file for the trace, which https://ui.perfetto.dev and chrome://tracing show; .json or .json.gz.

    Raises:
        UserError: something is wrong with recipe or data, or the file exists or cannot be written.
    """
    on_gpu = accelerator.device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    on_main(accelerator, lambda: check_new_output(path))  # rather now than after the updates
    data, model = prepare(recipe, accelerator)
    total = total_updates(recipe.optimization, data.batches)
    updates = [update for update, _ in updates_to_measure(data, model, recipe, accelerator, total)]
    with profile(activities=activities) as profiler:
        began = time.perf_counter()
        for update in updates:
            update()
        seconds = time.perf_counter() - began
    if accelerator.is_main_process:
        with new_output(path) as file, temporary_folder() as folder:
            exported = folder / f"trace{path.suffix}"  # compressed if this is .gz
            profiler.export_chrome_trace(str(exported))
            shutil.copyfile(exported, file)
    yield from _describe(profiler, on_gpu, len(updates), seconds)
    yield f"The trace is in {path}; https://ui.perfetto.dev shows it."


def _describe(profiler: profile, on_gpu: bool, updates: int, seconds: float) -> Iterator[str]:
    spent, launched = dict.fromkeys([*_KINDS, _OTHER], 0.0), 0
    for event in profiler.key_averages():
        if on_gpu and not is_kernel(event):
            continue
        microseconds = event.self_device_time_total if on_gpu else event.self_cpu_time_total
        spent[kind_of(event.key)] += microseconds / 1e3 / updates
        launched += event.count
    busy, whole = sum(spent.values()), seconds * 1e3 / updates
    what = "kernels" if on_gpu else "operators"
    yield f"{updates} updates of {whole:,.1f} ms each while profiled, with {launched // updates:,} {what}"
    if on_gpu:
        yield f"the GPU computes for {busy:,.1f} ms of an update; the rest of the time it waits for the host"
    yield f"{'':<16} {'ms an update':>12} {'share':>6}"
    for kind, milliseconds in sorted(spent.items(), key=lambda row: -row[1]):
        if milliseconds:
            yield f"{kind:<16} {milliseconds:12,.2f} {milliseconds / busy:6.0%}"


def is_kernel(event) -> bool:
    """Whether a row of the profiler is a kernel of a GPU, and not a range around kernels."""
    return event.device_type == DeviceType.CUDA and not event.is_user_annotation


def kind_of(name: str) -> str:
    """What a kernel or operator is."""
    return next((kind for kind, pattern in _KINDS.items() if re.search(pattern, name)), _OTHER)
