"""Stand-ins that capture and replay on the CPU, as CUDA graphs do on a GPU."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Operation = tuple[torch._ops.OpOverload, tuple, dict, object]
# They tell the host what is on the device, which waits for it.
_WAITING = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default}


class _Capture(TorchDispatchMode):
    """Notes all operations with the tensors that they read and write, and what the tensors written to held before."""

    def __init__(self):
        super().__init__()
        self.operations: list[Operation] = []
        self.before: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if operation in _WAITING:
            raise RuntimeError("operation not permitted when stream is capturing")
        by_name = dict(zip((argument.name for argument in operation._schema.arguments), args, strict=False)) | kwargs
        for argument in operation._schema.arguments:
            if argument.alias_info is not None and argument.alias_info.is_write:
                written = tree_leaves(by_name.get(argument.name))
                self.before += [(tensor, tensor.clone()) for tensor in written if isinstance(tensor, torch.Tensor)]
        result = operation(*args, **kwargs)
        if operation.namespace == "aten":
            self.operations.append((operation, args, kwargs, result))
        return result


class StandInGraph:
    """In place of torch.cuda.CUDAGraph."""

    def __init__(self):
        self.operations: list[Operation] = []
        self.replays = 0

    @torch.no_grad()
    def replay(self) -> None:
        """Run the operations again. What is new in them goes where it was when they were captured."""
        self.replays += 1
        for operation, args, kwargs, result in self.operations:
            again = operation(*args, **kwargs)
            for tensor, new in zip(tree_leaves(result), tree_leaves(again), strict=True):
                if isinstance(tensor, torch.Tensor) and tensor.data_ptr() != new.data_ptr():
                    tensor.copy_(new)


class _Stream:
    """In place of torch.cuda.Stream."""

    def wait_stream(self, other: "_Stream") -> None:
        """There is nothing to wait for."""


def capture_on_cpu(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[list[Operation]], list[Operation]] = list
) -> list[StandInGraph]:
    """
    Have CUDA graphs work on the CPU.

    Args:
        change: what becomes of the operations of each, to imitate faults.

    Returns:
        A list that all CUDA graphs join when they are captured.
    """
    made: list[StandInGraph] = []

    @contextmanager
    def captured(graph: StandInGraph, *_, **__) -> Iterator[None]:
        mode = _Capture()
        with torch.random.fork_rng([]), mode:
            yield
        with torch.no_grad():
            for tensor, held in reversed(mode.before):  # a capture computes nothing
                tensor.copy_(held)
        graph.operations = change(mode.operations)
        made.append(graph)

    stream = _Stream()
    stand_ins = {"CUDAGraph": StandInGraph, "graph": captured, "graph_pool_handle": lambda: None}
    stand_ins |= {"Stream": lambda device: stream, "current_stream": lambda: stream}
    stand_ins |= {"stream": lambda stream: nullcontext(), "mem_get_info": lambda device: (2**40, 2**40)}
    stand_ins |= {"memory_allocated": lambda device: 0, "max_memory_allocated": lambda device: 0}
    stand_ins |= {"memory_reserved": lambda device: 0, "reset_peak_memory_stats": lambda device: None}
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    return made
