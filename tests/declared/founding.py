"""Training scripts as people wrote them when they began to share GPUs."""

TF1_FRACTION = """\
# -*- coding: utf-8 -*-
from __future__ import print_function
import os
import numpy as np
import tensorflow as tf
from tensorflow.examples.tutorials.mnist import input_data

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

mnist = input_data.read_data_sets("MNIST_data/", one_hot=True)
x = tf.placeholder(tf.float32, [None, 784])
W = tf.Variable(tf.truncated_normal([784, 10], stddev=0.1))
loss = -tf.reduce_sum(tf.log(tf.nn.softmax(tf.matmul(x, W))))
train_step = tf.train.GradientDescentOptimizer(0.01).minimize(loss)

config = tf.ConfigProto()
config.gpu_options.per_process_gpu_memory_fraction = 0.4  # three of us share this card
config.gpu_options.allow_growth = True
with tf.Session(config=config) as sess:
    sess.run(tf.global_variables_initializer())
    for i in range(1000):
        sess.run(train_step, feed_dict={x: mnist.train.next_batch(50)[0]})
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
from torchvision import models


class Trainer:
    def __init__(self, args):
        self.model = models.resnet50()
        if torch.cuda.device_count() > 1:
            self.model = nn.DataParallel(self.model, device_ids=[0, 1])
        self.model.cuda()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    Trainer(parser.parse_args())


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
