"""CUDA graphs: the kernels of a step are recorded once, and then replayed by one call.

On a CPU, `RecordedCalls` replays torch's operations on the same tensors, so that code for graphs is
tested without a GPU: what Python decided while recording is fixed there too.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kitchen.errors import RunFailed

WARM_UPS = 2  # calls before the recording: kernels are compiled, and libraries set up


Call = tuple[Callable[[], Any], Sequence[torch.Tensor]]  # an operation, and its recorded outputs


class Graph(Protocol):
    """Recorded work without arguments, on tensors that stay where they are."""

    def replay(self) -> None: ...


class CudaGraph:
    """A graph of CUDA kernels."""

    def __init__(self, work: Callable[[], object], pool: Any, stream: Any) -> None:
        """`pool`: memory that graphs share, of which one at a time is replayed."""
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                work()
        stream.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        was_enabled = gc.isenabled()
        gc.disable()  # a tensor or graph that is freed now would invalidate the recording
        try:
            with torch.cuda.stream(stream):
                self._graph.capture_begin(pool=pool, capture_error_mode="thread_local")
                try:
                    work()
                finally:
                    self._graph.capture_end()
        finally:
            if was_enabled:
                gc.enable()
        torch.cuda.current_stream().wait_stream(stream)

    def replay(self) -> None:
        self._graph.replay()


class RecordedCalls:
    """A stand-in for `CudaGraph` on a CPU, which records and replays torch's operations."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._calls: list[Call] = []
        with _Recorder(self._calls):
            work()

    def replay(self) -> None:
        for call, outputs in self._calls:
            result = call()
            computed_outputs = [result] if _is_tensor(result) else _tensors(result)
            for output, computed in zip(outputs, computed_outputs, strict=True):
                if output is not computed:  # it is if the operation is in place
                    output.copy_(computed)


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records each operation with its outputs; refuses those that read values on the host."""

    def __init__(self, calls: list[Call]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._calls = calls

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RunFailed("a graph cannot read a value of a tensor while it is recorded")
        result = func(*args, **kwargs)
        inputs = {_storage(leaf) for leaf in tree_leaves((args, kwargs)) if _is_tensor(leaf)}
        outputs = _tensors(result)
        is_view = all(_storage(output) in inputs for output in outputs)
        if func._schema.is_mutable or not is_view:
            self._calls.append((lambda: func(*args, **kwargs), outputs))
        return result


def _tensors(result: Any) -> Sequence[torch.Tensor]:
    return [leaf for leaf in tree_leaves(result) if _is_tensor(leaf)]


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _storage(tensor: torch.Tensor) -> int:
    """Return the identity of the memory that a tensor views; oneDNN's tensors have no storage."""
    if tensor.is_mkldnn:
        return id(tensor)
    return int(tensor.untyped_storage()._cdata)


class Graphs:
    """The graphs of a model, recorded when they are first needed; one is replayed at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._graphs: dict[Hashable, Graph] = {}
        self._pool: Any = None
        self._stream: Any = None

    def __contains__(self, key: Hashable) -> bool:
        return key in self._graphs

    def record(self, key: Hashable, work: Callable[[], object]) -> None:
        """Record some work, which is also carried out."""
        if self._device.type != "cuda":
            self._graphs[key] = RecordedCalls(work)
            return
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        self._graphs[key] = CudaGraph(work, self._pool, self._stream)

    def replay(self, key: Hashable) -> None:
        self._graphs[key].replay()

    def clear(self) -> None:
        """Drop all graphs, as whenever a tensor that they use is replaced."""
        self._graphs.clear()
        self._pool = None


class SideStream:
    """A second stream, on which small kernels run beside large ones; on a CPU, the only one."""

    def __init__(self, device: torch.device) -> None:
        self._stream: Any = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def run(self, work: Callable[[], object]) -> None:
        """Start work that depends on what came before; outputs are in tensors made before."""
        if self._stream is None:
            work()
            return
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            work()

    def join(self) -> None:
        """Let what follows depend on that work."""
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)
