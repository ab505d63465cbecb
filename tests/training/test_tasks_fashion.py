"""The Fashion-MNIST task: its shuffles, pictures, augmentation and dropout, and its accuracy.

The tests write small files, which the real loader reads.
"""

import math

import numpy as np
import pytest
from scipy.ndimage import shift

from fathom_study import tasks
from fathom_study.datasets import DataError
from fathom_study.datasets import fashion_mnist as data
from fathom_study.tasks import fashion
from tests.support.datasets import put_idx, random_images
from tests.support.specs import (
    arrays_of,
    assert_depends_on_seed_and_step,
    end_of,
    make_spec,
    parameters_of,
)

task = tasks.load("fashion")

COUNT, TEST_COUNT, BATCH = 23, 7, 5
PER_EPOCH = 4  # 23 pictures make four batches of five, and three are left over


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Small files in the folder that the task reads; returns their arrays."""
    arrays = random_images(COUNT, TEST_COUNT)
    arrays[3][0] = 0  # the class that argmax gives for NaN logits
    root = tmp_path_factory.mktemp("data")
    digests = put_idx(root / "fashion-mnist", data.FILES, *arrays)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "FILES", digests)
        patch.setenv("FATHOM_DATA", str(root))
        yield data.FashionMnist(*arrays)


def spec_of(batch_size=BATCH, **changes):
    return make_spec(task="fashion", batch_size=batch_size, **changes)


def batch(spec, step):
    """(images, labels) of a batch; dropout masks are tested separately."""
    batch = task.batch(spec, step)
    images, labels = batch.inputs["images"], batch.targets
    return images, labels


def rows_of(images, files):
    """Indices of the training pictures of a batch, found by their pixels."""
    pictures = np.rint(images[..., 0] * 255).astype(np.uint8)
    rows = []
    for picture in pictures:
        (matches,) = np.nonzero((files.train_images == picture).all(axis=(1, 2)))
        assert len(matches) == 1
        rows.append(int(matches[0]))
    return rows


def epoch_rows(spec, epoch, files):
    """Indices of the training pictures of an epoch, in the order of its batches."""
    steps = range(epoch * PER_EPOCH, (epoch + 1) * PER_EPOCH)
    return rows_of(np.concatenate([batch(spec, step)[0] for step in steps]), files)


def test_pixels_are_bytes_over_255_with_their_labels(files):
    for step in range(PER_EPOCH):
        images, labels = batch(spec_of(), step)
        assert (images.shape, images.dtype) == ((BATCH, 28, 28, 1), np.float32)
        assert (labels.shape, labels.dtype) == ((BATCH,), np.int32)
        rows = rows_of(images, files)
        exact = files.train_images[rows].astype(np.float64) / 255
        np.testing.assert_array_equal(images[..., 0], exact.astype(np.float32))
        assert labels.tolist() == files.train_labels[rows].tolist()


@pytest.mark.parametrize("seed", [0, 9])
def test_epoch_is_the_documented_shuffle_without_the_remainder(files, seed):
    for epoch in (0, 1, 5):
        generator = np.random.default_rng([seed, int.from_bytes(b"fashion"), epoch])
        shuffle = generator.permutation(COUNT)
        rows = epoch_rows(spec_of(seed=seed), epoch, files)
        assert rows == shuffle[: PER_EPOCH * BATCH].tolist()


@pytest.mark.parametrize("options", [{}, {"augment": True, "normalise": True}])
def test_a_batch_depends_on_seed_and_step_alone(files, options):
    def drawn(step, **changes):
        fashion._permutation.cache_clear()
        return arrays_of(task.batch(spec_of(**options, **changes), step))

    assert_depends_on_seed_and_step(drawn, backend="mlx", variant="plain", lr=0.5)


def test_a_batch_larger_than_the_set_is_refused(files):
    with pytest.raises(DataError, match="batch_size 24 is more than the 23 training images"):
        batch(spec_of(batch_size=24), 0)


def test_normalising_subtracts_the_mean_and_divides_by_the_deviation(files):
    plain, labels = batch(spec_of(), 2)
    normalised, same_labels = batch(spec_of(normalise=True), 2)
    assert normalised.dtype == np.float32
    exact = (plain.astype(np.float64) - 0.2860) / 0.3530
    np.testing.assert_allclose(normalised, exact, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(labels, same_labels)


# --- augmentation --------------------------------------------------------------------------------


def translations(spec, step):
    """Shift (down, right) of each picture of an augmented batch, found among all 25."""
    plain, labels = batch(spec_of(seed=spec.seed), step)
    augmented, same_labels = batch(spec, step)
    np.testing.assert_array_equal(labels, same_labels)
    assert (augmented.shape, augmented.dtype) == (plain.shape, plain.dtype)
    actual = []
    for picture, result in zip(plain[..., 0], augmented[..., 0], strict=True):
        ways = [
            (down, right)
            for down in range(-2, 3)
            for right in range(-2, 3)
            if (shift(picture, (down, right), order=0) == result).all()  # uncovered: black
        ]
        assert len(ways) == 1
        actual += ways
    return actual


def test_augmentation_moves_pictures_by_up_to_two_pixels_each_way(files):
    spec = spec_of(seed=2, augment=True)
    result = [way for step in range(40) for way in translations(spec, step)]
    # 200 draws miss one of 25 shifts with a probability of 25 × (24/25)^200 = 0.7 %.
    assert set(result) == {(down, right) for down in range(-2, 3) for right in range(-2, 3)}


# --- the test set --------------------------------------------------------------------------------


def test_the_test_set_is_all_test_pictures_in_the_files_order(files):
    images, labels = whole(fashion.held_out(spec_of()))
    exact = files.test_images.astype(np.float64) / 255
    assert (images.shape, images.dtype) == ((TEST_COUNT, 28, 28, 1), np.float32)
    np.testing.assert_array_equal(images[..., 0], exact.astype(np.float32))
    assert labels.dtype == np.int32
    assert labels.tolist() == files.test_labels.tolist()
    prepared, _ = whole(fashion.held_out(spec_of(normalise=True, augment=True)))
    np.testing.assert_allclose(prepared[..., 0], (exact - 0.2860) / 0.3530, rtol=0, atol=1e-6)


def whole(batches):
    """(images, labels) of some batches together."""
    every = list(batches)
    images = np.concatenate([batch.inputs["images"] for batch in every])
    return images, np.concatenate([batch.targets for batch in every])


# --- dropout --------------------------------------------------------------------------------------


def test_dropout_mask_has_its_share(files):
    spec = spec_of(depth=40)
    keep = task.batch(spec, 0).inputs["keep"]
    assert keep.shape == (40, BATCH, 14, 14, 8)
    assert keep.dtype == bool
    # 313 600 draws: the share's standard deviation is 0.0005.
    assert 1 - keep.mean() == pytest.approx(0.1, abs=0.003)
    for other in (task.batch(spec, 1), task.batch(spec_of(depth=40, seed=1), 0)):
        # Independent masks agree in 0.9² + 0.1² of all places.
        assert (other.inputs["keep"] == keep).mean() == pytest.approx(0.82, abs=0.01)


# --- metrics of the trained network ---------------------------------------------------------------


@pytest.mark.parametrize("evaluated_at_once", [100, 3])
def test_accuracy_is_the_share_of_correct_test_images(files, monkeypatch, evaluated_at_once):
    monkeypatch.setattr(fashion, "EVALUATION_BATCH", evaluated_at_once)
    spec = make_spec(task="fashion", variant="resnet", depth=1)
    params = parameters_of(spec)
    params["head.weight"][:] = 0
    for named in range(10):  # the bias alone decides: all images get one class
        params["head.bias"][:] = np.arange(10) == named
        share = (files.test_labels == named).mean()
        assert end_of(spec, params).value("test_accuracy") == pytest.approx(share)
    params["head.bias"][:] = math.nan
    assert end_of(spec, params).value("test_accuracy") == 0
