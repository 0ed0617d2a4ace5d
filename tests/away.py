"""A Torch device that is none: its tensors are on the host, and no kernel takes them from there.

It stands for a device that Torch knows and this package has no kernel for. Importing this module
changes Torch for good, so it is for processes of their own. `CALLS` names what was asked of the
device, "to host" among it: what has to be waited for.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

_setup_privateuseone_for_python_backend("away")
CALLS: list[str] = []
WAITS = frozenset({"to host", "_local_scalar_dense"})


class Away(torch.Tensor):
    """A tensor on the device, and its entries."""

    on_host: torch.Tensor

    @staticmethod
    def __new__(cls: type[Any], on_host: torch.Tensor) -> Any:
        accelerator: Any = torch._C._acc
        tensor = accelerator.create_empty_tensor(on_host.shape, on_host.dtype)
        tensor.__class__ = Away
        tensor.on_host = on_host
        return tensor

    # Aliases that Torch would make without asking the device.
    def as_subclass(self, cls: Any) -> Any:  # noqa: ARG002
        return self

    def detach(self) -> Any:
        return self


def _compute(operator: Any, *args: Any, **kwargs: Any) -> Any:
    name = operator._schema.name.removeprefix("aten::")
    kwargs.pop("device", None)
    hosts: tuple[Any, Any] = _pytree.tree_map_only(Away, lambda one: one.on_host, (args, kwargs))
    if name == "_copy_from":
        CALLS.append(name if isinstance(args[1], Away) else "to host")
        return hosts[0][1].copy_(hosts[0][0])
    CALLS.append(name)
    results = operator(*hosts[0], **hosts[1])
    return _pytree.tree_map_only(torch.Tensor, lambda one: Away(one.contiguous()), results)


_library: Any = torch.library.Library("_", "IMPL")  # type: ignore[no-untyped-call]
_library.fallback(_compute, "PrivateUse1")
