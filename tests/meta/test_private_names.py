"""torch's private names: each that parity uses is listed, and is there. The workflow versions.yml asks this of the oldest and
the newest torch that pyproject.toml allows."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pages
import pytest
from private_names import used_in

# All are there in torch 2.13.0. Private attributes of tensors and names that are put together as text are not among them.
OURS = "torch._compile.getattr"  # which parity puts there
USED = {
    OURS,
    "torch._C",
    "torch._C.DisableTorchFunction",
    "torch._C.DisableTorchFunctionSubclass",
    "torch._C.DispatchKey",
    "torch._C.DispatchKeySet",
    "torch._C.Generator",
    "torch._C._ExcludeDispatchKeyGuard",
    "torch._C._current_autograd_node",
    "torch._C._current_graph_task_id",
    "torch._C._dispatch_get_all_op_names",
    "torch._C._dispatch_get_registrations_for_dispatch_key",
    "torch._C._dispatch_has_kernel_for_dispatch_key",
    "torch._C._dispatch_keys",
    "torch._C._dispatch_keyset_full_after",
    "torch._C._dynamo.eval_frame",
    "torch._C._functorch.is_functorch_wrapped_tensor",
    "torch._C._get_privateuse1_backend_name",
    "torch._C._jit_get_schemas_for_operator",
    "torch._C._jit_resolve_packet",
    "torch._C._len_torch_dispatch_stack",
    "torch._C._len_torch_function_stack",
    "torch._C._pop_torch_dispatch_stack",
    "torch._C._pop_torch_function_stack",
    "torch._C._push_on_torch_dispatch_stack",
    "torch._C._push_on_torch_function_stack",
    "torch._C._set_deterministic_algorithms",
    "torch._C._set_grad_enabled",
    "torch._C._should_allow_numbers_as_tensors",
    "torch.Tensor._make_subclass",
    "torch.Tensor._make_wrapper_subclass",
    "torch._GLOBAL_DEVICE_CONTEXT",
    "torch._amp_foreach_non_finite_check_and_unscale_",
    "torch._amp_update_scale_",
    "torch._decomp.decomposition_table",
    "torch._decomp.get_decompositions",
    "torch._dynamo.config",
    "torch._dynamo.exc",
    "torch._dynamo.list_backends",
    "torch._dynamo.lookup_backend",
    "torch._dynamo.reset",
    "torch._dynamo.trace_rules",
    "torch._foreach_copy_",
    "torch._fused_adagrad_",
    "torch._fused_adam_",
    "torch._fused_adamw_",
    "torch._fused_sgd_",
    "torch._grouped_mm",
    "torch._int_mm",
    "torch._neg_view",
    "torch._ops.OpOverload",
    "torch._ops.OpOverloadPacket",
    "torch._refs.nn",
    "torch._sample_dirichlet",
    "torch._scaled_mm",
    "torch._tensor_str",
    "torch._weight_int8pack_mm",
    "torch.autograd.Variable._execution_engine",
    "torch.autograd.forward_ad._current_level",
    "torch.ops.aten._batch_norm_with_update",
    "torch.ops.aten._copy_from",
    "torch.ops.aten._copy_from_and_resize",
    "torch.ops.aten._fused_rms_norm",
    "torch.ops.aten._histogramdd_from_bin_tensors",
    "torch.ops.aten._linalg_eigvals",
    "torch.ops.aten._native_batch_norm_legit.no_stats",
    "torch.ops.aten._reshape_alias",
    "torch.ops.aten._weight_int4pack_mm_for_cpu",
    "torch.optim.optimizer._get_capturable_supported_devices",
    "torch.overrides._pop_mode_temporarily",
    "torch.testing._internal.common_methods_invocations",
    "torch.testing._internal.common_modules",
    "torch.testing._internal.common_optimizers",
    "torch.utils._foreach_utils._get_fused_kernels_supported_devices",
    "torch.utils._python_dispatch.TorchDispatchMode",
    "torch.utils._python_dispatch._disable_current_modes",
    "torch.utils._python_dispatch.is_traceable_wrapper_subclass",
    "torch.utils._pytree.MappingKey",
    "torch.utils._pytree.SequenceKey",
    "torch.utils._pytree.TreeSpec",
    "torch.utils._pytree.keystr",
    "torch.utils._pytree.tree_flatten",
    "torch.utils._pytree.tree_flatten_with_path",
    "torch.utils._pytree.tree_leaves",
    "torch.utils._pytree.tree_map",
    "torch.utils._pytree.tree_map_only",
    "torch.utils._pytree.tree_unflatten",
}


def resolved(name: str) -> Any:
    """What a dotted name stands for; modules are imported. Raises AttributeError or ImportError."""
    found: Any = importlib.import_module("torch")
    at = "torch"
    for part in name.split(".")[1:]:
        at = f"{at}.{part}"
        found = getattr(found, part) if hasattr(found, part) else importlib.import_module(at)
    return found


def test_the_list_is_what_parity_uses() -> None:
    used = {name: path for path in sorted((pages.REPO / "parity").rglob("*.py")) for name in used_in(path)}
    assert {n: str(p) for n, p in used.items() if n not in USED} == {}, "prefer a public name, or list it"
    assert set(used) >= USED, "no longer used"


def test_each_is_in_this_torch() -> None:
    pytest.importorskip("expecttest")
    missing = []
    for name in sorted(USED - {OURS}):
        try:
            resolved(name)
        except (AttributeError, ImportError) as e:
            missing.append(f"{name}: {e}")
    assert missing == []
    with pytest.raises(ImportError):
        resolved("torch._no_such_name")


def test_names_are_found_in_every_form(tmp_path: Path) -> None:
    """Attributes, imports under another name, and modules; public names and private ones of others are not."""
    (tmp_path / "m.py").write_text(
        "import torch\nimport torch._refs.nn as r\nimport numpy as np\n"
        "from torch._C import DispatchKey as Key\nfrom torch.utils import _pytree as tree\n"
        "def f(x):\n    torch.nn.Linear(2, 2)._version\n    np._core.x\n"
        "    return torch._C._set_grad_enabled(True), Key.CPU, tree.tree_map, r.functional, torch.__version__\n"
    )
    assert used_in(tmp_path / "m.py") == {
        "torch._refs.nn",
        "torch._C.DispatchKey",
        "torch._C._set_grad_enabled",
        "torch.utils._pytree.tree_map",
    }
