"""The batched pipelines do to every image what a plain per-image implementation does."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.fx.experimental.proxy_tensor import make_fx

from fedskip import rng
from fedskip.data import augmentation

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
        augmentation.cifar10_train,
        augmentation.cifar10_test,
        "reflect",
        False,
        MEAN10,
        STD10,
        id="cifar10",
    ),
    pytest.param(
        augmentation.cifar100_train,
        augmentation.cifar100_test,
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
    row, column = augmentation._crop_and_flip(*augmentation._draws(word)[:3], zero, zero)
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
    for train in (augmentation.cifar10_train, augmentation.cifar100_train):
        assert torch.equal(train(x, word)[7:9], train(x[7:9], word[7:9]))


def test_other_words_give_other_pictures(batch):
    x, word = batch
    for train in (augmentation.cifar10_train, augmentation.cifar100_train):
        assert not torch.equal(train(x, word), train(x, word + 1))
        assert torch.equal(train(x, word), train(x, word))


@pytest.mark.parametrize("train", [augmentation.cifar10_train, augmentation.cifar100_train])
def test_pure_tensor_code(batch, train):
    x, word = batch[0][:8], batch[1][:8]
    assert torch.equal(make_fx(train)(x, word)(x, word), train(x, word))
    compiled = torch.compile(train, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x, word), train(x, word))
    mapped = torch.func.vmap(train)(x.view(2, 4, 3, 32, 32), word.view(2, 4))
    assert torch.equal(mapped.flatten(0, 1), train(x, word))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("train", [augmentation.cifar10_train, augmentation.cifar100_train])
def test_same_pixels_on_cuda_also_inside_a_graph(batch, train):
    x, word = (t.cuda() for t in batch)
    train(x, word)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = train(x, word)
    graph.replay()
    torch.testing.assert_close(found.cpu(), train(*batch), rtol=1e-6, atol=1e-6)
