"""Training scripts as people wrote them when they began to share GPUs, whole, and what each of them declares."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gpuwatch.declared.facts import Candidate, ScriptContents, Selection
from gpuwatch.declared.script import read_script
from gpuwatch.model import Basis, Confidence, Kind
from gpuwatch.units import MIB

TF1_FRACTION = """\
# -*- coding: utf-8 -*-
from __future__ import print_function
import os
import numpy as np
import tensorflow as tf
from tensorflow.examples.tutorials.mnist import input_data

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

mnist = input_data.read_data_sets("MNIST_data/", one_hot=True)

def weight_variable(shape):
    return tf.Variable(tf.truncated_normal(shape, stddev=0.1))

x = tf.placeholder(tf.float32, [None, 784])
y_ = tf.placeholder(tf.float32, [None, 10])
W = weight_variable([784, 10])
y = tf.nn.softmax(tf.matmul(x, W))
loss = -tf.reduce_sum(y_ * tf.log(y))
train_step = tf.train.GradientDescentOptimizer(0.01).minimize(loss)

config = tf.ConfigProto()
config.gpu_options.per_process_gpu_memory_fraction = 0.4  # three of us share this card
config.gpu_options.allow_growth = True
with tf.Session(config=config) as sess:
    sess.run(tf.global_variables_initializer())
    for i in range(1000):
        batch = mnist.train.next_batch(50)
        sess.run(train_step, feed_dict={x: batch[0], y_: batch[1]})
"""

KERAS_SESSION = '''\
"""Cats and dogs, with the memory of the GPU limited."""
import os
os.environ["CUDA_VISIBLE_DEVICES"] = "1"

import tensorflow as tf
from keras import backend as K
from keras.models import Sequential
from keras.layers import Dense
from keras.backend.tensorflow_backend import set_session

gpu_options = tf.GPUOptions(per_process_gpu_memory_fraction=0.3)
set_session(tf.Session(config=tf.ConfigProto(gpu_options=gpu_options)))

model = Sequential([Dense(64, activation="relu", input_shape=(20,)), Dense(1)])
model.compile(loss="mse", optimizer="adam")
model.fit(x_train, y_train, epochs=20, batch_size=32)
'''

TF2_GROWTH = """\
import tensorflow as tf

gpus = tf.config.experimental.list_physical_devices('GPU')
if gpus:
  try:
    # Currently, memory growth needs to be the same across GPUs
    for gpu in gpus:
      tf.config.experimental.set_memory_growth(gpu, True)
    logical_gpus = tf.config.experimental.list_logical_devices('GPU')
    print(len(gpus), "Physical GPUs,", len(logical_gpus), "Logical GPUs")
  except RuntimeError as e:
    # Memory growth must be set before GPUs have been initialized
    print(e)

model = tf.keras.models.Sequential([tf.keras.layers.Dense(10)])
"""

TF2_LIMIT = """\
import tensorflow as tf
from tensorflow import keras

gpus = tf.config.list_physical_devices('GPU')
if gpus:
  # Restrict TensorFlow to only allocate 1GB of memory on the first GPU
  try:
    tf.config.set_logical_device_configuration(
        gpus[0],
        [tf.config.LogicalDeviceConfiguration(memory_limit=1024)])
    logical_gpus = tf.config.list_logical_devices('GPU')
  except RuntimeError as e:
    print(e)

keras.datasets.mnist.load_data()
"""

TF2_TWO_LOGICAL = """\
import tensorflow as tf

physical_devices = tf.config.experimental.list_physical_devices("GPU")
tf.config.experimental.set_visible_devices(physical_devices[0], "GPU")
tf.config.experimental.set_virtual_device_configuration(
    physical_devices[0],
    [
        tf.config.experimental.VirtualDeviceConfiguration(memory_limit=512),  # the net
        tf.config.experimental.VirtualDeviceConfiguration(memory_limit=512),  # its target
    ],
)
strategy = tf.distribute.MirroredStrategy()
"""

TORCH_PARALLEL = """\
import argparse
import os

os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
os.environ["CUDA_VISIBLE_DEVICES"] = "2,3"

import torch
import torch.nn as nn
from torch.utils.data import DataLoader
from torchvision import datasets, models, transforms


class Trainer:
    def __init__(self, args):
        self.model = models.resnet50()
        if torch.cuda.device_count() > 1:
            self.model = nn.DataParallel(self.model, device_ids=[0, 1])
        self.model.cuda()

    def train(self, loader):
        for images, labels in loader:
            out = self.model(images.cuda())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    args = parser.parse_args()
    Trainer(args).train(DataLoader(datasets.FakeData()))


if __name__ == "__main__":
    main()
"""

TORCH_FOUR = """\
import os
import torch

GPUS = [0, 1, 2, 3]
os.environ['CUDA_VISIBLE_DEVICES'] = ','.join(map(str, GPUS))

model = torch.nn.DataParallel(torch.nn.Linear(10, 10), device_ids=list(range(len(GPUS)))).to("cuda:0")
for device in range(4):
    torch.cuda.set_per_process_memory_fraction(0.25, device)
"""

TF1_MISSPELT = """\
import os
import tensorflow as tf
os.environ['CUDA_VISIBLE_DIVICES'] = '2'
config = tf.ConfigProto()
config.gpu_options.per_process_memory_fraction = 0.4
sess = tf.Session(config=config)
"""

TF1_COMMENT = '''\
"""To share the card set config.gpu_options.per_process_gpu_memory_fraction = 0.4 before tf.Session."""
import tensorflow as tf

config = tf.ConfigProto(allow_soft_placement=True)
# config.gpu_options.per_process_gpu_memory_fraction = 0.4
# os.environ["CUDA_VISIBLE_DEVICES"] = "0"
sess = tf.Session(config=config)
'''


def said(candidate: Candidate) -> tuple[object, ...]:
    return (
        candidate.line,
        candidate.channel,
        candidate.framework,
        candidate.kind,
        candidate.basis,
        candidate.value,
        candidate.device,
    )


def test_tensorflow_1_takes_a_fraction_and_grows_into_it() -> None:
    found = read_script(TF1_FRACTION, "mnist.py")
    assert [said(candidate) for candidate in found.candidates] == [
        (23, "per_process_gpu_memory_fraction", "tensorflow", Kind.CAP, Basis.TOTAL, 0.4, None),
        (24, "allow_growth", "tensorflow", Kind.GROWTH, Basis.NONE, None, None),
    ]
    assert found.candidates[0].where == "mnist.py"
    assert found.candidates[0].text == "config.gpu_options.per_process_gpu_memory_fraction = 0.4"
    assert {candidate.confidence for candidate in found.candidates} == {Confidence.CERTAIN}
    assert [name for name, _ in found.settings] == ["TF_CPP_MIN_LOG_LEVEL"]
    assert "tensorflow" in found.imports
    assert not found.hints


def test_keras_on_tensorflow_1_sets_a_session_with_a_fraction() -> None:
    found = read_script(KERAS_SESSION, "cats.py")
    assert [said(candidate) for candidate in found.candidates] == [
        (11, "per_process_gpu_memory_fraction", "tensorflow", Kind.CAP, Basis.TOTAL, 0.3, None)
    ]
    assert found.candidates[0].text == "tf.GPUOptions(per_process_gpu_memory_fraction=0.3)"
    ((name, setting),) = found.settings
    assert (name, setting.value, setting.line, setting.confidence) == (
        "CUDA_VISIBLE_DEVICES",
        "1",
        3,
        Confidence.CERTAIN,
    )
    assert {"keras", "tensorflow", "os"} <= set(found.imports)


def test_tensorflow_2_grows_on_every_gpu_in_a_loop() -> None:
    found = read_script(TF2_GROWTH)
    assert [said(candidate) for candidate in found.candidates] == [
        (8, "set_memory_growth", "tensorflow", Kind.GROWTH, Basis.NONE, None, None)
    ]
    assert found.candidates[0].confidence is Confidence.CERTAIN, "a process that holds a GPU has found one"


def test_tensorflow_2_limits_one_logical_device_in_mib() -> None:
    (candidate,) = read_script(TF2_LIMIT).candidates
    assert said(candidate) == (8, "memory_limit", "tensorflow", Kind.CAP, Basis.BYTES, 1024 * MIB, 0)
    assert candidate.confidence is Confidence.CERTAIN


def test_two_logical_devices_of_one_gpu_are_parts_of_one_sum() -> None:
    found = read_script(TF2_TWO_LOGICAL)
    assert [said(candidate)[3:] for candidate in found.candidates] == [(Kind.CAP, Basis.BYTES, 512 * MIB, 0)] * 2
    assert len({candidate.adds for candidate in found.candidates}) == 1
    assert found.candidates[0].adds
    assert found.selections == (
        Selection(
            channel="set_visible_devices",
            framework="tensorflow",
            ordinals=(0,),
            where="script",
            line=4,
            text='tf.config.experimental.set_visible_devices(physical_devices[0], "GPU")',
        ),
    )


def settings(found: ScriptContents) -> Mapping[str, str | None]:
    return {name: setting.value for name, setting in found.settings}


def test_pytorch_picks_two_gpus_before_the_import() -> None:
    found = read_script(TORCH_PARALLEL)
    assert settings(found) == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "2,3"}
    assert {setting.confidence for _, setting in found.settings} == {Confidence.CERTAIN}
    assert found.candidates == ()
    assert {"torch", "torchvision"} <= set(found.imports)


def test_pytorch_on_four_gpus_takes_a_fraction_of_each() -> None:
    found = read_script(TORCH_FOUR)
    assert settings(found) == {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    assert [said(candidate) for candidate in found.candidates] == [
        (9, "set_per_process_memory_fraction", "torch", Kind.CAP, Basis.TOTAL, 0.25, device) for device in range(4)
    ]
    assert {candidate.confidence for candidate in found.candidates} == {Confidence.CERTAIN}


def test_a_misspelt_field_declares_nothing_and_is_said() -> None:
    found = read_script(TF1_MISSPELT, "train.py")
    assert found.candidates == ()
    (hint,) = found.hints
    assert hint.rule == "no effect"
    assert "train.py:5" in hint.words
    assert "per_process_gpu_memory_fraction" in hint.words
    assert settings(found) == {"CUDA_VISIBLE_DIVICES": "2"}, "so that the misspelt name can be told"


def test_comments_and_docstrings_declare_nothing() -> None:
    assert read_script(TF1_COMMENT) == ScriptContents(imports=("tensorflow",))


@pytest.mark.parametrize(
    ("nothing", "source"),
    [(True, "import torch\nprint(torch.cuda.mem_get_info())\n"), (False, TF1_FRACTION), (False, KERAS_SESSION)],
)
def test_a_source_without_any_of_the_words_is_not_even_parsed(nothing: bool, source: str) -> None:
    broken = source + "\nif (:\n"
    assert bool(read_script(broken).error) is not nothing
