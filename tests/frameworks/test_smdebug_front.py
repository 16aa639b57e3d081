# SPDX-License-Identifier: Apache-2.0
"""The smdebug front on today's torch, TensorFlow, Keras and XGBoost: what tests/python/test_smdebug_front.py asks of
torch 1.13, and the documented scripts of the other frameworks.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

_TESTS = Path(__file__).resolve().parents[1] / "python"
sys.path.insert(0, str(_TESTS))

from smdebug_lab import Lab  # noqa: E402

_spec = importlib.util.spec_from_file_location("smdebug_torch_tests", _TESTS / "test_smdebug_front.py")
assert _spec is not None
assert _spec.loader is not None
_torch_tests = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = _torch_tests
_spec.loader.exec_module(_torch_tests)
if importlib.util.find_spec("torch") is not None:
    globals().update(
        {
            name: thing
            for name, thing in vars(_torch_tests).items()
            if name.startswith("test_") or name == "mnist"
        }
    )
unused_port = _torch_tests.unused_port

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0", "CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture
def lab(tmp_path) -> Lab:
    return Lab(tmp_path)


COMPILED = """
import sys
import torch
import smdebug.pytorch as smd
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1))
hook = smd.Hook(sys.argv[1], save_config=smd.SaveConfig(save_interval=1), save_all=True)
if sys.argv[2] == "before":
    hook.register_module(net)
net = torch.compile(net, backend="eager", fullgraph=True)
if sys.argv[2] == "after":
    hook.register_module(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    loss = net(torch.ones(2, 4)).sum()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.9f}")
hook.close()
"""


def test_compiled_models_train_as_without(lab: Lab) -> None:
    pytest.importorskip("torch")
    outside = lab.plain(COMPILED, "never")
    before = lab.train(COMPILED, "before")
    assert before.stdout == outside.stdout
    assert "torch.compile" in before.stderr
    lab.run = lab.folder / "run2"
    lab.out = lab.folder / "out2"
    after = lab.train(COMPILED, "after")
    assert after.stdout == outside.stdout
    told = lab.read("""
tell([trial.steps(), trial.tensor("OptimizedModule__orig_mod.0.weight").value(2).shape,
      trial.tensor("gradient/OptimizedModule__orig_mod.2.bias").steps()])
""")
    assert told == [[0, 1, 2], [3, 4], [0, 1, 2]]


XGBOOST = """
import json, sys
import numpy as np
import xgboost as xgb
from smdebug.xgboost import Hook, SaveConfig

rng = np.random.default_rng(5)
features = rng.normal(size=(120, 4)).astype(np.float32)
target = (features[:, 0] + features[:, 1] ** 2 > 0.5).astype(np.float32)
dtrain = xgb.DMatrix(features[:80], label=target[:80])
dvalid = xgb.DMatrix(features[80:], label=target[80:])
params = {"objective": "binary:logistic", "max_depth": 3, "eta": 0.3, "eval_metric": ["logloss", "auc"], "seed": 1}
hook = Hook(
    out_dir=sys.argv[1],
    save_config=SaveConfig(save_interval=2),
    include_collections=["hyperparameters", "metrics", "losses", "predictions", "labels", "feature_importance",
                         "average_shap", "full_shap", "trees"],
    train_data=dtrain,
    validation_data=dvalid,
    hyperparameters=params,
)
history = {}
booster = xgb.train(params, dtrain, num_boost_round=5, evals=[(dtrain, "train"), (dvalid, "validation")],
                    callbacks=[hook], evals_result=history, verbose_eval=False)
hook.close()
part = booster[:3]
shap = part.predict(dtrain, pred_contribs=True)
json.dump({
    "history": history, "predictions": part.predict(dvalid).tolist(), "labels": dvalid.get_label().tolist(),
    "gain": part.get_score(importance_type="gain"), "shap": shap.tolist(),
    "trees": booster.trees_to_dataframe().to_dict("list"),
}, open("told.json", "w"))
"""


def test_xgboost(lab: Lab) -> None:
    pytest.importorskip("xgboost")
    pytest.importorskip("pandas")
    lab.train(XGBOOST)
    told = lab.read("""
true = json.load(open("told.json"))
value = lambda name, step=2: trial.tensor(name).value(step)
assert trial.steps() == [0, 2, 4] and trial.modes() == [], trial
for data in ("train", "validation"):
    for metric in ("logloss", "auc"):
        values = trial.tensor(f"{data}-{metric}").values()
        assert {s: v.shape for s, v in values.items()} == {0: (1,), 2: (1,), 4: (1,)}
        assert [float(v[0]) for v in values.values()] == true["history"][data][metric][::2]
assert trial.tensor_names(collection="losses") == ["train-logloss", "validation-logloss"]
assert np.array_equal(value("predictions"), np.float32(true["predictions"]))
assert np.array_equal(value("labels"), np.float32(true["labels"]))
gain, total = true["gain"], sum(true["gain"].values())
assert {n for n in trial.tensor_names(step=2, regex="^feature_importance/gain/")} == {
    f"feature_importance/gain/{f}" for f in gain}
for feature, score in gain.items():
    assert np.isclose(value(f"feature_importance/gain/{feature}")[0], score / total, rtol=1e-6)
shap = np.float32(true["shap"])
for number in range(4):
    assert np.allclose(value(f"full_shap/f{number}"), shap[:, number], rtol=1e-6)
    assert np.allclose(value(f"average_shap/f{number}"), shap[:, number].mean(), rtol=1e-5, atol=1e-7)
rows = [i for i, tree in enumerate(true["trees"]["Tree"]) if tree == 2]
order = sorted(rows, key=lambda i: true["trees"]["Node"][i])
for column in ("Node", "ID", "Feature"):
    assert value("trees/" + column).tolist() == [true["trees"][column][i] for i in order], column
assert np.allclose(value("trees/Gain"), [true["trees"]["Gain"][i] for i in order], rtol=1e-5)
assert value("hyperparameters/max_depth").tolist() == [3]
assert value("hyperparameters/objective").tolist() == ["binary:logistic"]
assert value("hyperparameters/eval_metric").tolist() == ["logloss", "auc"]
tell([trial.workers(), int(value("trees/Node").max())])
""")
    assert told[0] == ["worker_0"]
    assert told[1] >= 1


def test_xgboost_by_its_json_and_its_defaults(lab: Lab) -> None:
    pytest.importorskip("xgboost")
    config = lab.folder / "hook.json"
    config.write_text(json.dumps({"LocalPath": str(lab.out), "HookParameters": {"train.save_interval": "3"}}))
    text = """
import sys
import numpy as np
import xgboost as xgb
import smdebug.xgboost as smd
hook = smd.get_hook()
dtrain = xgb.DMatrix(np.arange(40.0).reshape(20, 2), label=np.arange(20.0))
hook.hyperparameters = {"eta": 0.5}
xgb.train({"eta": 0.5}, dtrain, num_boost_round=25, evals=[(dtrain, "train")], callbacks=[hook], verbose_eval=False)
xgb.cv({"eta": 0.5}, dtrain, num_boost_round=2, nfold=2, callbacks=[hook])
"""
    lab.train(text, SMDEBUG_CONFIG_FILE_PATH=str(config))
    assert lab.read("tell([trial.tensor_names(), trial.steps()[:3]])")[1] == [0, 10, 20]


KERAS = """
import json, sys
import numpy as np
import tensorflow as tf
import smdebug.tensorflow as smd

tf.keras.utils.set_random_seed(3)
x, y = np.random.rand(40, 4).astype("float32"), np.random.randint(0, 3, 40)
model = tf.keras.Sequential([
    tf.keras.layers.Input((4,)),
    tf.keras.layers.Dense(5, activation="relu", name="first"),
    tf.keras.layers.Dense(3, name="second"),
])
hook = smd.KerasHook(
    out_dir=sys.argv[1],
    save_config=smd.SaveConfig({smd.modes.TRAIN: smd.SaveConfigMode(save_interval=4),
                                smd.modes.EVAL: smd.SaveConfigMode(save_interval=1)}),
    include_collections=["weights", "biases", "gradients", "layers", "optimizer_variables", "inputs", "outputs"],
)
model.compile(optimizer=tf.keras.optimizers.SGD(0.1, momentum=0.9), metrics=["accuracy"],
              run_eagerly=sys.argv[2] == "eager", jit_compile=sys.argv[2] == "xla",
              loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
before = [w.tolist() for w in model.get_weights()]

class Tell(tf.keras.callbacks.Callback):
    step, weights, logs = -1, {}, {}
    def on_train_batch_end(self, batch, logs=None):
        self.step += 1
        self.weights[self.step] = [w.tolist() for w in model.get_weights()]
        self.logs[self.step] = {k: float(v) for k, v in logs.items()}

told = Tell()
model.fit(x, y, batch_size=8, epochs=2, callbacks=[hook, told], validation_data=(x, y), verbose=0)
predictions = model.predict(x, callbacks=[hook], verbose=0)
hook.close()
model.save("after.keras")
model.export("after", verbose=False)
json.dump({"weights": told.weights, "logs": told.logs, "before": before, "x": x.tolist(), "y": y.tolist(),
           "predictions": predictions.tolist()}, open(sys.argv[3], "w"))
"""


@pytest.mark.parametrize("kind", ["eager", "compiled", "xla"])
def test_keras(lab: Lab, kind: str) -> None:
    pytest.importorskip("tensorflow")
    plain = lab.plain(KERAS, kind, "plain.json", **QUIET)
    assert plain.returncode == 0, plain.stderr
    done = lab.train(KERAS, kind, "told.json", **QUIET)
    assert (lab.folder / "told.json").read_text() == (lab.folder / "plain.json").read_text()
    told = lab.read("""
true = json.load(open("told.json"))
names = ["first/weights/first/kernel:0", "first/weights/first/bias:0", "second/weights/second/kernel:0",
         "second/weights/second/bias:0"]
for step in (0, 4, 8):
    for number, name in enumerate(names):
        value = trial.tensor(name).value(step, modes.TRAIN)
        assert np.array_equal(value, np.float32(true["weights"][str(step)][number])), (name, step)
    for name, key in (("loss", "loss"), ("accuracy", "accuracy")):
        value = trial.tensor(name).value(step, modes.TRAIN)
        assert np.isclose(float(np.ravel(value)[0]), true["logs"][str(step)][key], rtol=1e-6), (name, step)
assert trial.tensor_names(collection="weights") == names[::2]
def inside():
    # Against what numpy makes of the weights before the step, and of those after it.
    if not trial.has_tensor("second/outputs"):
        return None
    k1, b1, k2, b2 = (np.float32(w) for w in true["before"])
    given = trial.tensor("first/inputs").value(0, modes.TRAIN)
    x = np.float32(true["x"])
    assert given.shape == (8, 4) and all((row == x).all(axis=1).any() for row in given)
    hidden = np.maximum(given @ k1 + b1, 0)
    assert np.allclose(trial.tensor("second/inputs").value(0, modes.TRAIN), hidden, atol=1e-6)
    assert np.allclose(trial.tensor("second/outputs").value(0, modes.TRAIN), hidden @ k2 + b2, atol=1e-6)
    after = true["weights"]["0"]
    for name, old, new in zip(("first/kernel", "first/bias", "second/kernel", "second/bias"), true["before"], after):
        gradient = trial.tensor(f"gradients/{name}Grad")
        slope = (np.float64(old) - np.float64(new)) / 0.1
        assert np.allclose(gradient.value(0, modes.TRAIN), slope, atol=1e-5), name
        assert gradient.steps(modes.TRAIN) == [0, 4, 8] and gradient.steps(modes.EVAL) == [], name
    outputs = trial.tensor("second/outputs")
    for step in (0, 4, 8):
        for name, same in (("inputs", "first/inputs"), ("predictions", "second/outputs")):
            value = trial.tensor(name).value(step, modes.TRAIN)
            assert np.array_equal(value, trial.tensor(same).value(step, modes.TRAIN)), (name, step)
    given = trial.inputs(0, modes.TRAIN)[0]
    rows = [int(np.flatnonzero((x == row).all(axis=1))[0]) for row in given]
    assert trial.labels(0, modes.TRAIN)[0].ravel().tolist() == [true["y"][row] for row in rows]
    assert len(trial.predictions(0, modes.EVAL)) == len(trial.labels(0, modes.EVAL)) == 1
    assert trial.labels(0, modes.PREDICT) == []
    predicted = outputs.value(0, modes.PREDICT)
    assert np.allclose(predicted, np.float32(true["predictions"])[:len(predicted)], atol=1e-6)
    return [outputs.steps(mode) for mode in (modes.TRAIN, modes.EVAL, modes.PREDICT)]
# As there: variables of the optimizer for a bias fit the pattern of the biases.
biases = trial.tensor_names(collection="biases")
assert [name for name in biases if not name.startswith("sgd/")] == names[1::2]
tell({
    "train": trial.tensor("loss").steps(modes.TRAIN), "eval": trial.tensor("loss").steps(modes.EVAL),
    "modes": [m.name for m in trial.modes()], "losses": trial.tensor_names(collection="losses"),
    "gradients": trial.tensor_names(collection="gradients"), "layers": trial.tensor_names(collection="layers"),
    "optimizer": len(trial.tensor_names(collection="optimizer_variables")),
    "val_loss": [m.name for m in modes if trial.tensor("val_loss").steps(m)],
    "inside": inside(),
})
""")
    assert told["train"] == [0, 4, 8]
    assert told["eval"] == list(range(10))
    assert told["modes"] == ["TRAIN", "EVAL"] or told["modes"] == ["TRAIN", "EVAL", "PREDICT"]
    assert told["losses"] == ["loss", "val_loss"]
    assert told["optimizer"] >= 4
    assert "EVAL" in told["val_loss"]
    if kind == "xla":
        # Where nothing can be had the hook says so, once, and what to do.
        assert told["gradients"] == told["layers"] == []
        assert done.stderr.count("gradients, layers, inputs and outputs are not saved") == 1
        assert "compile(jit_compile=False)" in done.stderr
        return
    assert "smdebug (Telltale)" not in done.stderr, done.stderr
    assert told["gradients"] == [
        f"gradients/{layer}/{variable}Grad"
        for layer in ("first", "second")
        for variable in ("bias", "kernel")
    ]
    assert told["layers"] == ["first/inputs", "first/outputs", "second/inputs", "second/outputs"]
    assert told["inside"] == [[0, 4, 8], list(range(10)), [0]]


AGAIN = """
import sys
import numpy as np
import tensorflow as tf
import smdebug.tensorflow as smd

model = tf.keras.Sequential([tf.keras.layers.Input((2,)), tf.keras.layers.Dense(1, name="only")])
model.compile(optimizer="sgd", loss="mse", steps_per_execution=int(sys.argv[2]))
x, y = np.ones((12, 2), "float32"), np.ones((12, 1), "float32")
options = dict(batch_size=2, verbose=0)
model.fit(x, y, **options)
model.evaluate(x, y, **options)
hook = smd.KerasHook(out_dir=sys.argv[1], include_collections=["own"],
                     save_config=smd.SaveConfig(save_interval=1))
hook.get_collection("own").include("only/outputs|only/kernelGrad")
model.fit(x, y, callbacks=[hook], validation_data=(x, y), **options)
hook.close()
smd.del_hook()
del hook
model.fit(x, y, **options)
"""


@pytest.mark.parametrize("batches", [1, 3])
def test_a_hook_of_a_keras_model_that_was_trained_before(lab: Lab, batches: int) -> None:
    pytest.importorskip("tensorflow")
    lab.train(AGAIN, batches, **QUIET)
    steps = list(range(6 // batches))
    told = lab.read("""
tell([trial.tensor("gradients/only/kernelGrad").steps(modes.TRAIN), trial.tensor("only/outputs").steps(modes.TRAIN),
      trial.tensor("only/outputs").steps(modes.EVAL), trial.tensor_names(collection="own"),
      trial.tensor("only/outputs").value(0, modes.TRAIN).shape])
""")
    assert told == [steps, steps, steps, ["gradients/only/kernelGrad", "only/outputs"], [2, 1]]


BESIDE = """
import sys
import numpy as np
import tensorflow as tf
import smdebug.tensorflow as smd

model = tf.keras.Sequential([tf.keras.layers.Input((2,)), tf.keras.layers.Dense(1, name="only")])
model.compile(optimizer=tf.keras.optimizers.SGD(0.0), loss="mse", jit_compile=False)
x, y = np.ones((12, 2), "float32"), np.ones((12, 1), "float32")


class Sampler(tf.keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        self.model(100 * x[:2])

    on_train_batch_end = on_train_batch_begin


for folder in (sys.argv[1] + "-before", sys.argv[1]):
    hook = smd.KerasHook(out_dir=folder, include_collections=["gradients", "layers"],
                         save_config=smd.SaveConfig(save_interval=1))
    model.fit(x, y, batch_size=2, verbose=0, callbacks=[Sampler(), hook, Sampler()])
    hook.close()
    smd.del_hook()
np.savez("told.npz", outputs=model(x[:2]).numpy())
"""


def test_a_compiled_model_that_is_called_beside_its_steps_by_a_hook_after_another(lab: Lab) -> None:
    pytest.importorskip("tensorflow")
    lab.train(BESIDE, **QUIET)
    told = lab.read("""
true = np.load("told.npz")
for step in range(6):
    assert np.allclose(trial.tensor("only/outputs").value(step, modes.TRAIN), true["outputs"])
    assert np.array_equal(trial.tensor("only/inputs").value(step, modes.TRAIN), np.ones((2, 2)))
tell([trial.tensor(name).steps(modes.TRAIN) for name in ("only/outputs", "gradients/only/kernelGrad")])
""")
    assert told == [list(range(6))] * 2


FREED = """
import gc, sys, weakref
import numpy as np
import tensorflow as tf
import smdebug.tensorflow as smd

given = []

class Told(tf.keras.layers.Dense):
    def call(self, inputs):
        outputs = super().call(inputs)
        given.append(weakref.ref(outputs))
        return outputs

def living():
    gc.collect()
    return sum(each() is not None for each in given)

class Tell(tf.keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        print(living())

model = tf.keras.Sequential([tf.keras.layers.Input((2,)), Told(1), tf.keras.layers.ReLU()])
optimizer = tf.keras.optimizers.SGD(0.1)
model.compile(optimizer=optimizer, loss="mse", run_eagerly=True)
x, y = np.ones((8, 2), "float32"), np.ones((8, 1), "float32")
hook = smd.KerasHook(out_dir=sys.argv[1], save_config=smd.SaveConfig(save_interval=2), include_collections=["layers"])
given.clear()
model.fit(x, y, batch_size=2, verbose=0, callbacks=[hook, Tell()])
hook.register_model(model)
for step in range(4, 8):
    with hook.wrap_tape(tf.GradientTape()) as tape:
        loss = tf.reduce_mean(tf.square(model(x)))
    gradients = tape.gradient(loss, model.trainable_variables)
    del tape, loss
    print(living())
"""


def test_a_hook_keeps_nothing_that_a_step_does_not_save(lab: Lab) -> None:
    pytest.importorskip("tensorflow")
    assert lab.train(FREED, **QUIET).stdout.split() == ["0"] * 8
    assert lab.read("tell(trial.tensor_names(collection='layers'))") != []


TAPE = """
import sys
import numpy as np
import tensorflow as tf
import smdebug.tensorflow as smd

model = tf.keras.Sequential([tf.keras.layers.Input((2,)), tf.keras.layers.Dense(1, name="only")])
optimizer = tf.keras.optimizers.SGD(0.1)
hook = smd.KerasHook(out_dir=sys.argv[1], save_config=smd.SaveConfig(save_interval=2),
                     include_collections=["weights", "biases", "gradients"])
x = tf.ones((3, 2))
kernels, slopes = [], []
for step in range(5):
    with hook.wrap_tape(tf.GradientTape()) as tape:
        loss = tf.reduce_mean(tf.square(model(x)))
    kernels.append(model.layers[0].kernel.numpy())
    gradients = tape.gradient(loss, model.trainable_variables)
    slopes.append(gradients[0].numpy())
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    hook.save_tensor("last", loss)
hook.close()
np.savez("told.npz", kernels=np.array(kernels), slopes=np.array(slopes))
"""


def test_gradient_tape(lab: Lab) -> None:
    pytest.importorskip("tensorflow")
    lab.train(TAPE, **QUIET)
    told = lab.read("""
true = np.load("told.npz")
for step in (0, 2, 4):
    assert np.array_equal(trial.tensor("weights/only/kernel:0").value(step, modes.TRAIN), true["kernels"][step])
    assert np.array_equal(trial.tensor("gradients/only/kernelGrad").value(step, modes.TRAIN), true["slopes"][step])
tell([trial.steps(modes.TRAIN), trial.tensor_names()])
""")
    assert told == [
        [0, 2, 4],
        [
            "gradients/only/biasGrad",
            "gradients/only/kernelGrad",
            "last",
            "loss",
            "weights/only/bias:0",
            "weights/only/kernel:0",
        ],
    ]


SESSION = """
import sys
import numpy as np
import tensorflow.compat.v1 as tf
import smdebug.tensorflow as smd
tf.disable_v2_behavior()

hook = smd.SessionHook(out_dir=sys.argv[1], save_config=smd.SaveConfig(save_interval=2),
                       include_collections=["weights", "gradients", "relu"])
hook.get_collection("relu").include("Relu")
x = tf.placeholder(tf.float32, (None, 2), name="x")
unused = tf.nn.relu(tf.placeholder(tf.float32, (None,), name="never_fed"))
weight = tf.get_variable("w", initializer=np.ones((2, 1), np.float32))
loss = tf.reduce_mean(tf.nn.relu(tf.matmul(x, weight)), name="loss")
tf.losses.add_loss(loss)
optimizer = hook.wrap_optimizer(tf.train.GradientDescentOptimizer(0.1))
train = optimizer.minimize(loss)
with tf.train.MonitoredSession(hooks=[hook]) as session:
    for step in range(5):
        session.run([train, loss], feed_dict={x: np.ones((3, 2))})
"""


def test_session(lab: Lab) -> None:
    pytest.importorskip("tensorflow")
    lab.train(SESSION, **QUIET)
    told = lab.read("""
names = trial.tensor_names()
gradient = trial.tensor_names(collection="gradients")[0]
tell([trial.steps(), "loss:0" in names, "w:0" in names, any("never" in n or "Relu:0" == n for n in names),
      trial.tensor("w:0").value(0).shape, trial.tensor(gradient).value(2).shape, trial.tensor("loss:0").value(2).shape])
""")
    assert told == [[0, 2, 4], True, True, False, [2, 1], [2, 1], [1]]
