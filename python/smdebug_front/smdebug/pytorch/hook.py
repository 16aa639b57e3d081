# SPDX-License-Identifier: Apache-2.0
"""The hook for PyTorch.

A step begins with the forward pass of a registered root; then its parameters are saved, as they are before
the step. Inputs and outputs of modules are saved as they run, gradients as backward gives them. Nothing is
set on modules but hooks; inside torch.compile and torch.jit.trace they do nothing.
"""

import weakref

import torch

from .._telltale.guard import harmless
from ..core.collection import DEFAULT_PYTORCH_COLLECTIONS, CollectionKeys
from ..core.hook import CHIEF_WORKER, CallbackHook
from ..core.singleton_utils import set_hook
from ..exceptions import SMDebugError
from . import tensors
from .attached import AfterForward, AtGradient, BeforeForward
from .collection import CollectionManager


class Hook(CallbackHook):
    """
    hook = Hook(out_dir="out", save_config=SaveConfig(save_interval=100))
    hook.register_module(net)
    hook.register_loss(criterion)
    """

    framework = "pytorch"
    manager_class = CollectionManager
    default_collections = DEFAULT_PYTORCH_COLLECTIONS
    default_include_collections = (CollectionKeys.LOSSES,)

    def __init__(self, *args, **kwargs):
        # id(module) -> (weak reference to it, its name): a module may be one that cannot be hashed.
        self._names = {}
        self._has_root = False
        super().__init__(*args, **kwargs)
        set_hook(self)

    # -- what a script calls --

    def register_module(self, module):
        """Saves of this root module: its parameters, their gradients, inputs and outputs of its modules.

        Raises:
            SMDebugError: it is no torch.nn.Module.
        """
        if not isinstance(module, torch.nn.Module):
            raise SMDebugError(f"{type(module).__name__} is no torch.nn.Module")
        self._attach(module)

    def register_hook(self, module):
        """As register_module."""
        self.register_module(module)

    def register_loss(self, loss_module):
        """Saves inputs and outputs of a loss module, <Class>_output_0.

        Raises:
            SMDebugError: it is no loss module.
        """
        if not isinstance(loss_module, torch.nn.modules.loss._Loss):
            raise SMDebugError(f"{type(loss_module).__name__} is no subclass of torch.nn.modules.loss._Loss")
        self._attach_after(loss_module, loss_module._get_name())

    @harmless()
    def record_tensor_value(self, tensor_name, tensor_value):
        """Saves a tensor that no module gives, a functional loss for example, as <tensor_name>_output_0."""
        if not isinstance(tensor_value, torch.Tensor):
            self.logger.error(
                "smdebug (Telltale): record_tensor_value(%r): %s is no torch.Tensor",
                tensor_name,
                type(tensor_value).__name__,
            )
            return
        self._save_outputs(tensor_name, tensor_value)

    def close(self):
        if self._live and self._has_root and self.step < 0:
            self.logger.warning(
                "smdebug (Telltale): no forward pass of a registered module was seen: under torch.compile "
                "register the compiled module"
            )
        super().close()

    # -- what torch calls --

    @harmless()
    def _attach(self, root):
        if self._name_of(root) == root._get_name():
            self.logger.warning("smdebug (Telltale): %s is registered already", root._get_name())
            return
        kind = root._get_name()
        self._has_root = True
        for name, module in root.named_modules():
            self._attach_after(module, kind if module is root else name)
        root.register_forward_pre_hook(BeforeForward(self, kind, weakref.ref(root)))
        for name, parameter in root.named_parameters():
            if parameter.requires_grad:
                try:
                    parameter.register_hook(AtGradient(self, f"{self.GRADIENT_PREFIX}{kind}_{name}"))
                except Exception as error:  # A parameter that has no shape yet, for example.
                    self.logger.warning("smdebug (Telltale): no gradients of %s: %s", name, error)

    @harmless()
    def _attach_after(self, module, name):
        if self._name_of(module) is None:
            owner = weakref.ref(module)
            module.register_forward_hook(AfterForward(self, name, owner))
            self._names[id(module)] = (owner, name)

    def _name_of(self, module):
        """The name under which a module is registered, or None."""
        owner, name = self._names.get(id(module), (None, None))
        return name if owner is not None and owner() is module else None

    @harmless()
    def _before_forward(self, kind, root):
        if self._next_step():
            for name, parameter in root.named_parameters():
                self._save(f"{kind}_{name}", parameter)

    @harmless()
    def _after_forward(self, name, inputs, outputs):
        self._save_inputs(name, inputs)
        self._save_outputs(name, outputs)
        self._save_waiting()

    @harmless()
    def _at_gradient(self, name, gradient):
        self._save(name, gradient)
        self._save_waiting()

    # -- tensors --

    def _prepare(self):
        for collection in self.get_collections().values():
            for module, (inputs, outputs) in getattr(collection, "modules", {}).items():
                name = self._name_of(module)
                if name is None:
                    self.logger.error(
                        "smdebug (Telltale): collection %s: the module %s is not registered",
                        collection.name,
                        type(module).__name__,
                    )
                    continue
                if inputs:
                    collection.include(f"{name}_input_")
                if outputs:
                    collection.include(f"{name}_output_")
        super()._prepare()

    def _is_tensor(self, value):
        return isinstance(value, torch.Tensor)

    def _record(self, tensor, take, value):
        if not isinstance(value, torch.Tensor):
            super()._record(tensor, take, value)
            return
        described = tensors.describe(value)
        if isinstance(described, str):
            self._recorder.skipped(described)
            return
        _held, address, dtype, shape, strides = described
        self._recorder.record_memory(tensor, address, dtype, shape, strides, take)

    def _to_numpy(self, value):
        if isinstance(value, torch.Tensor):
            return tensors.to_numpy(value)
        return super()._to_numpy(value)

    # -- workers --

    def _worker_name(self):
        distributed = torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            return f"worker_{distributed.get_rank()}"
        return CHIEF_WORKER

    def _worker_count(self):
        distributed = torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            return distributed.get_world_size()
        return 1
