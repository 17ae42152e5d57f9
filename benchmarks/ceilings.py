"""
Counts what one update of a model asks of a GPU, without one, and derives what share of its matrix units' peak it can
reach at most, however fast the host: products, bytes that are moved, kernels, and waits for the device; eager and
compiled. Everything here is computed on fake tensors, which have shapes and no memory.

    python benchmarks/ceilings.py                      # base and big, 3,125 and 25,000 target tokens a GPU
    python benchmarks/ceilings.py --shapes big --tokens 25000
"""

import argparse
import operator
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest import mock

import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from modeling_scratch import ScratchConfig, ScratchForConditionalGeneration
from modeling_scratch.model import attention, masking
from modeling_scratch.recipe.shipped import CONFIGURATION_FOLDER
from modeling_scratch.recipe.yaml_reading import read_yaml
from modeling_scratch.training import loss
from modeling_scratch.training.compilation import compile_layers
from modeling_scratch.training.dry_run import GPU_PEAKS, multiplied_weights
from modeling_scratch.training.loss import TrainingLoss

GPUS = {  # dense operations in bf16, and bytes, per second
    "A100 SXM 80 GB": (GPU_PEAKS["A100"], 2.04e12),
    "H100 SXM": (GPU_PEAKS["H100"], 3.35e12),
}
OF_PEAK, OF_BANDWIDTH = 0.65, 0.8  # the share of these that a kernel reaches
VOCABULARY, LENGTH = 37_000, 32  # tokens of the vocabulary; of each source and target
LONG_ROW = 16_384  # elements; of a longer row a fused kernel needs a second pass after a sum over it
MOVE_NOTHING = ("empty", "empty_like", "new_empty", "detach", "_unsafe_view", "alias")
WAITS = ("_local_scalar_dense", "nonzero", "is_nonzero", "item", "_unique2")


@dataclass
class Work:
    """The work of some kernels."""

    operations: float = 0.0
    transferred: float = 0.0  # bytes
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(GPUS, 0.0))
    kernels: int = 0
    waits: int = 0

    def add(self, operations: float, transferred: float) -> None:
        """One kernel, which takes as long as its products or its transfers, whichever takes longer."""
        self.operations, self.transferred = self.operations + operations, self.transferred + transferred
        self.kernels += 1
        for name, (peak, bandwidth) in GPUS.items():
            self.seconds[name] += max(operations / (OF_PEAK * peak), transferred / (OF_BANDWIDTH * bandwidth))

    def __iadd__(self, other: "Work") -> "Work":
        self.operations += other.operations
        self.transferred += other.transferred
        self.kernels += other.kernels
        self.waits += other.waits
        for name in GPUS:
            self.seconds[name] += other.seconds[name]
        return self


# -- attention, as one kernel ------------------------------------------------------------------------------------------


@torch.library.custom_op("ceilings::attention", mutates_args=())
def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    raise NotImplementedError("fake tensors alone")


@attend.register_fake
def _(query, key, value, mask):
    return torch.empty_like(query)


@torch.library.custom_op("ceilings::attention_backward", mutates_args=())
def attend_backward(
    gradient: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, output: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    raise NotImplementedError("fake tensors alone")


@attend_backward.register_fake
def _(gradient, query, key, value, output):
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _keep(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:3], output)


attend.register_autograd(
    lambda ctx, gradient: (*attend_backward(gradient, *ctx.saved_tensors), None), setup_context=_keep
)


def attention_operations(func, args) -> float:
    """Two products in the forward pass; in the backward pass the scores again and four more."""
    query, key = args[-4:-2] if "backward" in str(func) else args[:2]
    batch, heads, queries, width = query.shape
    return (10 if "backward" in str(func) else 4) * batch * heads * queries * key.shape[2] * width


# -- eager -------------------------------------------------------------------------------------------------------------


def tensors(values) -> list[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        return [values]
    if isinstance(values, list | tuple):
        return [tensor for value in values for tensor in tensors(value)]
    return []


def size(several) -> int:
    """Bytes of distinct tensors; broadcast ones count once."""
    return sum(
        {
            id(tensor): tensor.element_size()
            * torch.Size(n for n, step in zip(tensor.shape, tensor.stride(), strict=True) if step).numel()
            for tensor in several
        }.values()
    )


def operations_of(func, args, kwargs, out) -> float:
    if func.namespace == "ceilings":
        return attention_operations(func, args)
    packet = func.overloadpacket
    return flop_registry[packet](*args, **kwargs, out_val=out) if packet in flop_registry else 0.0


class Counter(TorchDispatchMode):
    """Counts what is called while it is on: each operator a kernel that reads its inputs and writes its outputs."""

    def __init__(self):
        super().__init__()
        self.work, self.on = Work(), True

    def outside(self, function):
        """Wrap a function so that it runs outside this mode, in which nothing is compiled."""

        def call(*args, **kwargs):
            self.__exit__(None, None, None)
            try:
                return function(*args, **kwargs)
            finally:
                self.__enter__()

        return call

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name in WAITS:
            self.work.waits += self.on
        out = func(*args, **kwargs)
        moves_nothing = func.is_view or func.namespace == "prim" or name in MOVE_NOTHING
        if self.on and not moves_nothing:
            read, written = tensors([*args, *(value for key, value in kwargs.items() if key != "out")]), tensors(out)
            changes = any(argument.alias_info and argument.alias_info.is_write for argument in func._schema.arguments)
            if changes and "out" not in kwargs:
                written = [tensor for tensor in written if any(tensor is each for each in read)] or read
            if name in ("gather", "index_put_", "index_select", "embedding"):  # only the indexed rows of the large one
                read = written = [tensors(out)[0] if name != "index_put_" else args[2]]
            self.work.add(operations_of(func, args, kwargs, out), size(read) + size(written))
        return out


# -- compiled ----------------------------------------------------------------------------------------------------------


def fused_work(graph: torch.fx.GraphModule) -> Work:
    """
    The kernels of a graph, if all that is neither a product nor attention is fused with what it is connected with:
    then tensors are read and written where a kernel begins and ends.
    """
    work, level, own, outputs, views = Work(), {}, set(), set(), {}
    aten = torch.ops.aten
    touch_few = (aten.scatter.value, aten.scatter.src, aten.gather.default)  # elements of a row: one each

    def base(node):
        while node in views:
            node = views[node]
        return node

    def value(node):
        return node.meta["val"]

    nodes = [node for node in graph.graph.nodes if node.op == "call_function" and tensors(value(node))]
    for node in nodes:
        target = node.target
        if getattr(target, "is_view", False) or target in (aten.view.default, aten._unsafe_view.default):
            views[node] = node.args[0]
            continue
        packet = getattr(target, "overloadpacket", None)
        is_product = packet in flop_registry or getattr(target, "namespace", "") == "ceilings"
        if is_product or target in touch_few:
            own.add(node)
        if target is operator.getitem and node.args[0] in own:  # one of several outputs
            own.add(node)
            outputs.add(node)
        inputs = {base(each) for each in node.all_input_nodes}
        level[node] = max((level.get(each, 0) + (each in own) for each in inputs), default=0)

    random = set()  # what depends on random numbers alone is computed where it is first used
    for node in level:
        if random.issuperset(base(each) for each in node.all_input_nodes):
            random.add(node)
    for node in reversed([node for node in level if node in random]):
        level[node] = min((level[user] for user in node.users if user in level), default=0)
    kernel = {node: node for node in level}  # representative of its fused group

    def find(node):
        while kernel[node] is not node:
            node = kernel[node]
        return node

    for node in level:
        for each in {base(each) for each in node.all_input_nodes}:
            if each in level and not {node, each} & own and level[node] == level[each]:
                kernel[find(node)] = find(each)
    groups: dict = {}
    for node in level:
        groups.setdefault(find(node), []).append(node)
    users: dict = {}
    for node in graph.graph.nodes:
        for each in node.all_input_nodes:
            if node not in views:
                users.setdefault(base(each), set()).add(node)
    for members in groups.values():
        if members[0] in outputs:
            continue
        inside = set(members)
        read = {base(each) for node in members for each in node.all_input_nodes} - inside
        written = [node for node in members if users.get(node, set()) - inside]
        node = members[0]
        operations = 0.0
        if node in own:
            values = [value(each) if isinstance(each, torch.fx.Node) else each for each in node.args]
            operations = operations_of(node.target, values, node.kwargs, value(node))
        read_sizes = [size(tensors(value(each))) for each in read if each.op != "get_attr"]
        if node.target in touch_few:
            read_sizes, written = [2 * 4 * value(node).shape[0]], []
        passes = 1 + any(
            tensor.ndim == 2 and tensor.shape[1] >= LONG_ROW for each in read for tensor in tensors(value(each))
        ) * (node not in own)
        work.add(operations, passes * sum(read_sizes) + sum(size(tensors(value(each))) for each in written))
    return work


def counting_backend(counter: Counter):
    """A backend of torch.compile that counts a graph as fused each time that it is called."""

    def compiler(graph, example_inputs):
        work = fused_work(graph)

        def run(*args):
            counter.on = False
            try:
                return graph(*args)
            finally:
                counter.on = True
                counter.work += work

        return make_boxed_func(run)

    return aot_autograd(
        fw_compiler=compiler,
        bw_compiler=compiler,
        partition_fn=min_cut_rematerialization_partition,
        decompositions=select_decomp_table(),
    )


# -- an update ---------------------------------------------------------------------------------------------------------


@contextmanager
def as_on_a_gpu():
    """Fake tensors are on the CPU; here the model does with them what it does on a GPU."""

    def whole_attention(self, query, key, value, attention_mask, dropout, is_causal):
        return attend(query, key, value, attention_mask)

    def in_float32(self, states):
        return nn.functional.layer_norm(states.float(), self.normalized_shape, self.weight, self.bias, self.eps)

    with (
        mock.patch.object(masking, "can_look_at", return_value=False),
        mock.patch.object(loss, "can_look_at", return_value=False),
        mock.patch.object(loss, "CHUNK_ROWS", loss.LOGITS_OF_GPU // VOCABULARY),
        mock.patch.object(nn.LayerNorm, "forward", in_float32),  # a GPU's autocast, unlike the CPU's
        mock.patch.object(attention.ScratchAttention, "sdpa", whole_attention),
    ):
        yield


def config_of(shape: str) -> ScratchConfig:
    return ScratchConfig(**read_yaml(CONFIGURATION_FOLDER / "models" / f"{shape}.yaml"), vocab_size=VOCABULARY)


def count(shape: str, tokens: int, compiled: bool) -> Work:
    """Of one update in bf16, with this many target and as many source tokens, in sentences of LENGTH tokens."""
    torch._dynamo.reset()
    with FakeTensorMode(allow_non_fake_inputs=True), as_on_a_gpu():
        model = ScratchForConditionalGeneration(config_of(shape)).train()
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()  # creates its states
        optimizer.zero_grad()
        ids = torch.ones(-(-tokens // LENGTH), LENGTH, dtype=torch.long)
        positions, counter = torch.arange(LENGTH)[None], Counter()
        options = {"num_items_in_batch": tokens, "fused_loss": TrainingLoss(label_smoothing=0.1)}
        if compiled:
            compile_layers(model, backend=counting_backend(counter), dynamic=False)
            for stack in (model.model.encoder, model.model.decoder):
                for layer in stack.layers:
                    layer._compiled_call_impl = counter.outside(layer._compiled_call_impl)
        with counter:
            with torch.autocast("cpu", torch.bfloat16):
                found = model(input_ids=ids, attention_mask=ids, position_ids=positions, labels=ids, **options).loss
            found[0].backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    return counter.work


def useful_operations(shape: str, tokens: int) -> float:
    """The products of the model's own formula, forward and twice that backward; what is computed again not counted."""
    config = config_of(shape)
    attentions = config.encoder_layers + 2 * config.decoder_layers
    return 3 * tokens * (2 * multiplied_weights(config) + attentions * 4 * LENGTH * config.d_model)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=["base", "big"])
    parser.add_argument("--tokens", nargs="+", type=int, default=[3125, 25_000])
    options = parser.parse_args()
    print(
        f"Computed, not measured: bf16, sentences of {LENGTH} tokens, a vocabulary of {VOCABULARY:,}; products reach "
        f"{OF_PEAK:.0%} of the peak and memory {OF_BANDWIDTH:.0%} of its bandwidth; nothing overlaps; compiled, what "
        "is neither a product nor attention is fused.\n"
    )
    print("| shape | tokens | | operations | GB moved | kernels | waits | " + " | ".join(GPUS) + " |")
    print("|---|---|---|---|---|---|---|" + "---|" * len(GPUS))
    for shape in options.shapes:
        for tokens in options.tokens:
            useful = useful_operations(shape, tokens)
            for compiled in (False, True):
                work = count(shape, tokens, compiled)
                ceilings = [useful / (work.seconds[name] * peak) for name, (peak, _) in GPUS.items()]
                print(
                    f"| {shape} | {tokens:,} | {'compiled' if compiled else 'eager'} | {work.operations:.2e} | "
                    f"{work.transferred / 1e9:.1f} | {work.kernels:,} | {work.waits} | "
                    + " | ".join(f"{ceiling:.0%}" for ceiling in ceilings)
                    + " |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
