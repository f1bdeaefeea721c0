"""CIFAR from the official python files: read, checked, never executed."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import pickle
import re
import struct
import tarfile
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch.fx.experimental.proxy_tensor import make_fx

from fedskip import rng
from fedskip.data import cache, catalogue, cifar, load
from fedskip.errors import InputError
from real_data import real


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSKIP_DATA", str(tmp_path / "cache"))


def pickled(
    images: np.ndarray, labels: list[int], key: bytes = b"labels", code: bytes = b"u1"
) -> bytes:
    """The opcodes of an official file, which Python 2 wrote: Python 3 would write others."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    def whole(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    new = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n"
        + whole(0)
        + b"\x85"
        + text(b"b")
        + b"\x87R"
    )
    dtype = b"cnumpy\ndtype\n" + text(code) + whole(0) + whole(1) + b"\x87R"
    dtype += b"(" + whole(3) + text(b"|") + b"NNN" + whole(-1) + whole(-1) + whole(0) + b"tb"
    shape = b"(" + b"".join(map(whole, images.shape)) + b"t"
    data = b"T" + struct.pack("<i", images.nbytes) + images.tobytes()
    array = new + b"(" + whole(1) + shape + dtype + b"\x89" + data + b"tb"
    listed = b"](" + b"".join(map(whole, labels)) + b"e"
    return (
        b"\x80\x02}("
        + text(b"data")
        + array
        + text(key)
        + listed
        + text(b"batch_label")
        + text(b"1")
        + b"u."
    )


def picture(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, 3072), dtype=np.uint8)


@pytest.fixture
def small(tmp_path, monkeypatch):
    """CIFAR-10 with four images in each of its six files, in an official folder."""
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    md5s = {}
    for seed, name in enumerate(cifar.CIFAR10.files):
        raw = pickled(picture(4, seed), [0, 1, 9, seed])
        (folder / name).write_bytes(raw)
        md5s[name] = hashlib.md5(raw).hexdigest()
    (folder / "batches.meta").write_bytes(b"not looked at")
    spec = replace(cifar.CIFAR10, files=md5s, train=20, test=4)
    monkeypatch.setattr(cifar, "CIFAR10", spec)
    item = catalogue.CATALOGUE["cifar10"]
    assert item.files is not None
    files = replace(item.files, read=lambda path: cifar.read(spec, path))
    monkeypatch.setitem(catalogue.CATALOGUE, "cifar10", replace(item, files=files))
    return folder


@pytest.mark.parametrize("form", ["folder", "tar"])
def test_import_and_load(small, tmp_path, form):
    path = small
    if form == "tar":
        path = tmp_path / "cifar-10-python.tar.gz"
        with tarfile.open(path, "w:gz") as file:
            file.add(small, small.name)
    catalogue.import_("cifar10", path)
    data = load("cifar10")
    assert data.classes == 10
    assert len(data.samples) == 24
    train, test = data.split(3)
    assert train.tolist() == list(range(20))
    assert test.tolist() == [20, 21, 22, 23]
    x, y = data.samples.take(torch.tensor([5, 23]))
    assert x.dtype == torch.uint8
    assert x[0].numpy().tolist() == picture(4, 1)[1].reshape(3, 32, 32).tolist()
    assert y.tolist() == [1, 5]
    assert data.train_transform(x, y).shape == data.test_transform(x).shape == (2, 3, 32, 32)


def test_what_a_file_may_not_be(small):
    (small / "data_batch_2").write_bytes(b"x")
    with pytest.raises(
        InputError, match=r"data_batch_2 that is not the official one: its md5 is \w{32}, not"
    ):
        catalogue.import_("cifar10", small)
    (small / "data_batch_2").unlink()
    (small / "test_batch").unlink()
    with pytest.raises(
        InputError, match=r"lacks data_batch_2, test_batch\. Give cifar-10-python.tar.gz"
    ):
        catalogue.import_("cifar10", small)
    assert not cache.has("cifar10")


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (pickled(picture(2), [0, 1], code=b"O8"), r"not of plain bytes"),
        (pickled(picture(2), [0, 1])[:1000], r"is not an official CIFAR file"),
        (pickle.dumps([1], 2), r"holds no dict"),
        (b"", r"is not an official CIFAR file"),
    ],
)
def test_bad_content(raw, message):
    with pytest.raises(InputError, match=message) as error:
        cifar.images(cifar.CIFAR10, raw, "data_batch_1")
    assert str(error.value).startswith("data_batch_1 ")


class Evil:
    def __init__(self, call, *args):
        self.call = call, args

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("call", [os.system, eval, np.array, getattr, os.open])
def test_a_malicious_pickle_is_refused_and_never_run(tmp_path, protocol, call):
    mark = tmp_path / "ran"
    evil = Evil(call, f"touch {mark}" if call is os.system else f"open({str(mark)!r}, 'w')")
    raw = pickle.dumps({b"data": evil, b"labels": [0]}, protocol)
    with pytest.raises(InputError, match=r"it wants to run \w+.*Do not trust it"):
        cifar.unpickle(raw, "data_batch_1")
    assert not mark.exists()


def test_missing_from_the_cache():
    with pytest.raises(
        InputError, match=r"data.name is not in .* yet, got 'cifar100'\. Run `fedskip data get"
    ):
        load("cifar100")
    with pytest.raises(InputError, match=r"data.fraction is not an option of 'cifar100', got 1"):
        load("cifar100", fraction=1)
    with pytest.raises(InputError, match=r"Did you mean 'cifar10'"):
        load("cifar01")


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
@pytest.mark.slow  # unpacking takes a quarter of a minute
def test_golden(tmp_path, name):
    script = real("unpack_cifar.py")
    spec = importlib.util.spec_from_file_location("unpack_cifar", script)
    unpack_cifar = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(unpack_cifar)
    official = tmp_path / "official"
    official.mkdir()
    for file, raw in unpack_cifar.files(name, str(script.parent)):
        (official / file).write_bytes(raw)
    catalogue.import_(name, official)  # checks the md5 of every file

    started = time.perf_counter()
    data = load(name)
    assert time.perf_counter() - started < 2
    samples = data.samples
    assert samples.x.shape == (60_000, 3, 32, 32)
    assert samples.x.nbytes + samples.y.nbytes < 0.2 * 2**30
    train, test = data.split(0)
    for part, size in ((train, 50_000), (test, 10_000)):
        counts = np.bincount(samples.labels()[part], minlength=data.classes)
        assert counts.tolist() == [size // data.classes] * data.classes

    pixels = samples.x[:50_000].to(torch.float64).mean((0, 2, 3)) / 255
    known = {"cifar10": (0.4914, 0.4822, 0.4465), "cifar100": (0.5071, 0.4865, 0.4409)}[name]
    np.testing.assert_allclose(pixels, known, atol=1e-4)
    shown = data.test_transform(samples.x[:50_000:10])
    assert shown.mean().abs() < 0.02
    assert abs(shown.std() - 1) < 0.02


def test_official_digests():
    for spec in (cifar.CIFAR10, cifar.CIFAR100):
        digests = [*spec.files.values(), spec.source.digest.removeprefix("md5:")]
        assert all(re.fullmatch("[0-9a-f]{32}", digest) for digest in digests)
        assert spec.source.urls[0].startswith("https://")


# --- The batched pipelines do to every image what a plain per-image implementation does --------------------

M = 400


@pytest.fixture(scope="module")
def batch():
    draw = np.random.default_rng(0)
    x = torch.from_numpy(draw.integers(0, 256, (M, 3, 32, 32), dtype=np.uint8))
    return x, torch.from_numpy(draw.integers(0, 1 << 32, M))


def draws(word):
    """The crop's top and left, whether to flip, and the angle of one image, as the module's table says."""
    u = [float(rng.uniform(torch.tensor(int(word)), counter)) for counter in range(4)]
    return int(9 * u[0]), int(9 * u[1]), u[2] < 0.5, 30 * u[3] - 15


def plain(image, word, pad, rotate, mean, std):
    """One image through pad, crop, flip, rotate and normalise; image (3, 32, 32) uint8."""
    top, left, flip, angle = draws(word)
    padded = np.pad(image, ((0, 0), (4, 4), (4, 4)), mode=pad)
    cropped = padded[:, top : top + 32, left : left + 32]
    picture = cropped[:, :, ::-1] if flip else cropped
    if rotate:
        picture = np.stack(
            [np.array(Image.fromarray(channel).rotate(angle)) for channel in picture]
        )
    return (picture / 255 - np.reshape(mean, (3, 1, 1))) / np.reshape(std, (3, 1, 1))


MEAN10, STD10 = (0.49137, 0.48235, 0.44667), (0.24706, 0.24353, 0.26157)
MEAN100, STD100 = (0.50708, 0.48655, 0.44092), (0.26733, 0.25644, 0.27615)
PIPELINES = [
    pytest.param(
        cifar.cifar10_train,
        cifar.cifar10_test,
        "reflect",
        False,
        MEAN10,
        STD10,
        id="cifar10",
    ),
    pytest.param(
        cifar.cifar100_train,
        cifar.cifar100_test,
        "constant",
        True,
        MEAN100,
        STD100,
        id="cifar100",
    ),
]


@pytest.mark.parametrize(("train", "test", "pad", "rotate", "mean", "std"), PIPELINES)
def test_batch_equals_one_image_at_a_time(batch, train, test, pad, rotate, mean, std):
    x, word = batch
    found = train(x, word)
    assert found.dtype == torch.float32
    expected = np.stack(
        [plain(i, w, pad, rotate, mean, std) for i, w in zip(x.numpy(), word, strict=True)]
    )
    # one grey level is 0.014 and the means above are rounded: every pixel is the right one
    np.testing.assert_allclose(found.numpy(), expected, atol=2e-4)

    normalised = (x.numpy() / 255 - np.reshape(mean, (3, 1, 1))) / np.reshape(std, (3, 1, 1))
    np.testing.assert_allclose(test(x).numpy(), normalised, atol=2e-4)


def test_crops_reach_every_corner_equally():
    word = torch.arange(90_000)
    zero = torch.zeros(1, 1, 1, dtype=torch.int64)
    row, column = cifar._crop_and_flip(*cifar._draws(word)[:3], zero, zero)
    counts = np.bincount(row.flatten().numpy() + 4, minlength=9)
    assert len(counts) == 9
    assert np.abs(counts - 10_000).max() < 500  # five standard errors
    assert {int(c) for c in column.flatten().unique()} == {*range(-4, 5), *range(27, 36)}
    largest = torch.tensor(
        1 - 2**-24
    )  # the largest draw there is must not round up to a tenth position
    assert int(largest * 9) == 8


def test_a_sample_does_not_depend_on_its_batch(batch):
    x, word = batch
    for train in (cifar.cifar10_train, cifar.cifar100_train):
        assert torch.equal(train(x, word)[7:9], train(x[7:9], word[7:9]))


def test_other_words_give_other_pictures(batch):
    x, word = batch
    for train in (cifar.cifar10_train, cifar.cifar100_train):
        assert not torch.equal(train(x, word), train(x, word + 1))
        assert torch.equal(train(x, word), train(x, word))


@pytest.mark.parametrize("train", [cifar.cifar10_train, cifar.cifar100_train])
def test_pure_tensor_code(batch, train):
    x, word = batch[0][:8], batch[1][:8]
    assert torch.equal(make_fx(train)(x, word)(x, word), train(x, word))
    compiled = torch.compile(train, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x, word), train(x, word))
    mapped = torch.func.vmap(train)(x.view(2, 4, 3, 32, 32), word.view(2, 4))
    assert torch.equal(mapped.flatten(0, 1), train(x, word))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("train", [cifar.cifar10_train, cifar.cifar100_train])
def test_same_pixels_on_cuda_also_inside_a_graph(batch, train):
    x, word = (t.cuda() for t in batch)
    train(x, word)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = train(x, word)
    graph.replay()
    torch.testing.assert_close(found.cpu(), train(*batch), rtol=1e-6, atol=1e-6)
