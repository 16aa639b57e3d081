# SPDX-License-Identifier: Apache-2.0
"""Makes `recording`, a real recording of SageMaker Debugger's library of a tiny training.

usage: make.py FOLDER      (an interpreter that has smdebug and torch: bench/smdebug_peer.py)
"""

import json
import pathlib
import sys

import torch
from smdebug.pytorch import Hook, ReductionConfig, SaveConfig, modes


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU(), torch.nn.Linear(2, 1))
    loss_function = torch.nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    hook = Hook(
        out_dir=str(folder),
        save_config=SaveConfig(save_interval=2),
        include_collections=["weights", "biases", "gradients", "losses", "last_layer"],
        reduction_config=ReductionConfig(save_shape=True, save_raw_tensor=True),
    )
    hook.get_collection("last_layer").include("Sequential_2")
    hook.get_collection("gradients").reduction_config = ReductionConfig(
        reductions=["min", "max", "mean", "std", "variance", "sum", "prod"],
        abs_reductions=["mean", "min"],
        norms=["l1", "l2"],
    )
    hook.register_module(model)
    hook.register_loss(loss_function)
    expected = {}
    for mode, steps in ((modes.TRAIN, 3), (modes.EVAL, 1)):
        hook.set_mode(mode)
        for step in range(steps):
            inputs, labels = torch.rand(4, 3), torch.rand(4, 1)
            if step % 2 == 0:
                for name, parameter in model.named_parameters():
                    expected[f"{mode.name} {step} Sequential_{name}"] = parameter.detach().tolist()
            loss = loss_function(model(inputs), labels)
            hook.save_scalar("accuracy", step / 4)
            if step % 2 == 0:
                expected[f"{mode.name} {step} MSELoss_output_0"] = float(loss)
            if mode == modes.TRAIN:
                optimizer.zero_grad()
                loss.backward()
                if step % 2 == 0:
                    gradient = model[0].weight.grad
                    expected[f"{mode.name} {step} gradient/Sequential_0.weight mean"] = float(gradient.mean())
                    expected[f"{mode.name} {step} gradient/Sequential_0.weight l2"] = float(gradient.norm())
                optimizer.step()
    hook.close()
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


main()
