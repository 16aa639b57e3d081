# SPDX-License-Identifier: Apache-2.0
"""Keras' wrapper for scikit-learn under cross_val_score: three fits on TensorFlow."""

import keras
from keras import layers
from keras.wrappers import SKLearnClassifier
from sklearn.datasets import load_digits
from sklearn.model_selection import cross_val_score

keras.utils.set_random_seed(0)


def build(X, y, loss):  # noqa: N803
    model = keras.Sequential(
        [layers.Input(X.shape[1:]), layers.Dense(64, "relu"), layers.Dense(y.shape[1], "softmax")]
    )
    model.compile(keras.optimizers.SGD(0.05), loss)
    return model


x, y = load_digits(return_X_y=True)
model = SKLearnClassifier(build, model_kwargs={"loss": "categorical_crossentropy"})
print(cross_val_score(model, x / 16, y, cv=3, params={"epochs": 15, "batch_size": 32, "verbose": 0}))
