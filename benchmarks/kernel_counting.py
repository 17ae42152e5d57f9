"""Counts a GPU's kernels, their products, the bytes moved, and waits, on fake tensors; eager and compiled."""

import operator
from dataclasses import dataclass, field

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

GPUS = {  # dense operations in bf16, and bytes, per second
    "A100 SXM 80 GB": (312e12, 2.04e12),
    "H100 SXM": (989e12, 3.35e12),
}
OF_PEAK, OF_BANDWIDTH = 0.65, 0.8  # the share of these that a kernel reaches
LONG_ROW = 16_384  # elements; after a sum over a longer row, a fused kernel needs a second pass
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
        """Add a kernel, which takes as long as its products or its transfers, whichever take longer."""
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
    """Counts what is called while it is on, each operator as a kernel that reads its inputs and writes its outputs."""

    def __init__(self):
        super().__init__()
        self.work, self.on = Work(), True

    def outside(self, function):
        """Wrap a function so that it runs outside this mode, since nothing is compiled within it."""

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
    The kernels of a graph, if everything that is neither a product nor attention is fused with its neighbours: then
    tensors are read and written only where a kernel begins or ends.
    """
    work, level, own, outputs, views = Work(), {}, set(), set(), {}
    aten = torch.ops.aten
    touch_few = (aten.scatter.value, aten.scatter.src, aten.gather.default)  # one element of each row

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
    """A torch.compile backend that counts a graph's fused kernels each time the graph is called."""

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
