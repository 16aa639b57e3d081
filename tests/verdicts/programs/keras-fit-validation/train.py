# SPDX-License-Identifier: Apache-2.0
"""Keras' Model.fit on torch, with validation data and an early stop."""

import keras
from keras import layers
from sklearn.datasets import load_digits

keras.utils.set_random_seed(0)
x, y = load_digits(return_X_y=True)
x = (x / 16).astype("float32").reshape(-1, 8, 8, 1)
model = keras.Sequential(
    [layers.Input((8, 8, 1)), layers.Conv2D(16, 3, activation="relu"), layers.Flatten(), layers.Dense(10)]
)
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
model.fit(
    x[:1400],
    y[:1400],
    validation_data=(x[1400:], y[1400:]),
    epochs=15,
    batch_size=32,
    verbose=2,
    callbacks=[keras.callbacks.EarlyStopping(patience=3)],
)
