"""How many test digits a model saved by the example `digits` classifies rightly: `accuracy.py MODEL DATA` prints "RIGHT OF".

The network is written here once more, by PyTorch where that is installed and by numpy where not, so that nothing of flodl
but the file is relied on. The file is read by the package `safetensors`; by PyTorch alone, as the format is described, where
that package is not there."""
import gzip
import json
import pathlib
import struct
import sys

MEAN, DEVIATION = 0.1307, 0.3081
# What batch normalisation adds to a variance.
EPSILON = 1e-5
# Images at once, so that little memory is enough.
MANY = 250


def read_idx(path):
    """The sides and the bytes of an IDX file."""
    raw = gzip.decompress(path.read_bytes())
    end = 4 + 4 * raw[3]
    return struct.unpack(f">{raw[3]}I", raw[4:end]), raw[end:]


class Numpy:
    """The layers by numpy."""

    def __init__(self, path):
        import numpy
        from safetensors.numpy import load_file
        self.numpy, self.model = numpy, load_file(path)

    def pixels(self, raw, sides):
        grey = self.numpy.frombuffer(raw, dtype=self.numpy.uint8).astype(self.numpy.float32) / 255
        return ((grey - self.numpy.float32(MEAN)) / self.numpy.float32(DEVIATION)).reshape(-1, 1, *sides)

    def convolution(self, images, name):
        padded = self.numpy.pad(images, ((0, 0), (0, 0), (2, 2), (2, 2)))
        windows = self.numpy.lib.stride_tricks.sliding_window_view(padded, (5, 5), axis=(2, 3))
        weight, bias = self.model[f"{name}.weight"], self.model[f"{name}.bias"]
        sums = self.numpy.tensordot(windows, weight, axes=([1, 4, 5], [1, 2, 3])).transpose(0, 3, 1, 2)
        return sums + bias[:, None, None]

    def norm(self, images, name):
        mean, variance, weight, bias = (self.model[f"{name}.{part}"][:, None, None]
                                        for part in ("running_mean", "running_var", "weight", "bias"))
        return (images - mean) / self.numpy.sqrt(variance + EPSILON) * weight + bias

    def rectified(self, images):
        return self.numpy.maximum(images, 0)

    def halved(self, images):
        count, channels, rows, columns = images.shape
        return images.reshape(count, channels, rows // 2, 2, columns // 2, 2).max(axis=(3, 5))

    def linear(self, rows, name):
        return rows @ self.model[f"{name}.weight"].T + self.model[f"{name}.bias"]

    def classes(self, outputs):
        return outputs.argmax(1).tolist()


class Torch:
    """The layers by PyTorch."""

    def __init__(self, path):
        import torch
        torch.set_num_threads(1)
        torch.set_grad_enabled(False)
        self.torch, self.functional = torch, torch.nn.functional
        try:
            from safetensors.torch import load_file
            self.model = load_file(path)
        except ImportError:
            self.model = self.read(pathlib.Path(path).read_bytes())

    def read(self, raw):
        end = 8 + struct.unpack("<Q", raw[:8])[0]
        kinds = {"F32": self.torch.float32, "I64": self.torch.int64}

        def tensor(entry):
            start, stop = (end + at for at in entry["data_offsets"])
            return self.torch.frombuffer(bytearray(raw[start:stop]), dtype=kinds[entry["dtype"]]).reshape(entry["shape"])

        entries = json.loads(raw[8:end])
        return {name: tensor(entry) for name, entry in entries.items() if name != "__metadata__"}

    def pixels(self, raw, sides):
        grey = self.torch.frombuffer(bytearray(raw), dtype=self.torch.uint8).float() / 255
        return ((grey - MEAN) / DEVIATION).reshape(-1, 1, *sides)

    def convolution(self, images, name):
        return self.functional.conv2d(images, self.model[f"{name}.weight"], self.model[f"{name}.bias"], padding=2)

    def norm(self, images, name):
        mean, variance, weight, bias = (self.model[f"{name}.{part}"]
                                        for part in ("running_mean", "running_var", "weight", "bias"))
        return self.functional.batch_norm(images, mean, variance, weight, bias, eps=EPSILON)

    def rectified(self, images):
        return images.relu()

    def halved(self, images):
        return self.functional.max_pool2d(images, 2)

    def linear(self, rows, name):
        return self.functional.linear(rows, self.model[f"{name}.weight"], self.model[f"{name}.bias"])

    def classes(self, outputs):
        return outputs.argmax(1).tolist()


def forward(layers, images):
    for block in ("1", "2"):
        images = layers.convolution(images, f"conv{block}")
        if f"norm{block}.weight" in layers.model:
            images = layers.norm(images, f"norm{block}")
        images = layers.halved(layers.rectified(images))
    rows = images.reshape(len(images), -1)
    return layers.linear(layers.rectified(layers.linear(rows, "fc1")), "fc2")


def main(model, data):
    try:
        layers = Torch(model)
    except ImportError:
        layers = Numpy(model)
    (count, *sides), raw = read_idx(pathlib.Path(data) / "t10k-images-idx3-ubyte.gz")
    _, labels = read_idx(pathlib.Path(data) / "t10k-labels-idx1-ubyte.gz")
    size = sides[0] * sides[1]
    right = 0
    for start in range(0, count, MANY):
        images = layers.pixels(raw[start * size:(start + MANY) * size], sides)
        found = layers.classes(forward(layers, images))
        right += sum(one == other for one, other in zip(found, labels[start:start + MANY]))
    print(right, count)


main(*sys.argv[1:])
