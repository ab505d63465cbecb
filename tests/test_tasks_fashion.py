"""The Fashion-MNIST task: its shuffles, its pictures, its augmentation.

The files are small ones that the tests write, read by the real loader.
"""

import gzip
import hashlib
import math
import struct
from types import SimpleNamespace

import numpy as np
import pytest

from fathom import data, tasks
from fathom.tasks import fashion

COUNT, TEST_COUNT, BATCH = 23, 7, 5
PER_EPOCH = 4  # 23 pictures make four batches of five, and three are left over


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Small files where the task looks for them; returns their arrays."""
    rng = np.random.default_rng(8)
    arrays = tuple(
        rng.integers(low, high, size, dtype=np.uint8)
        for count in (COUNT, TEST_COUNT)
        for low, high, size in ((0, 256, (count, 28, 28)), (0, 10, count))
    )
    root = tmp_path_factory.mktemp("data")
    folder = root / "fashion-mnist"
    folder.mkdir()
    digests = {}
    for name, array in zip(data.FILES, arrays, strict=True):
        header = struct.pack(f">{1 + array.ndim}I", 0x0800 + array.ndim, *array.shape)
        (folder / name).write_bytes(gzip.compress(header + array.tobytes()))
        digests[name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "FILES", digests)
        patch.setenv("FATHOM_DATA", str(root))
        yield data.FashionMnist(*arrays)


def make_spec(seed=0, batch_size=BATCH, normalise=False, augment=False, **others):
    model = SimpleNamespace(width=8, dropout=0.1, normalise=normalise, augment=augment)
    return SimpleNamespace(seed=seed, batch_size=batch_size, depth=3, model=model, **others)


def rows_of(images, files):
    """Which training pictures a batch shows, found by their pixels."""
    pictures = np.rint(images[..., 0] * 255).astype(np.uint8)
    rows = []
    for picture in pictures:
        (matches,) = np.nonzero((files.train_images == picture).all(axis=(1, 2)))
        assert len(matches) == 1
        rows.append(int(matches[0]))
    return rows


def epoch_rows(spec, epoch, files):
    """The training pictures of an epoch, in the order in which its batches show them."""
    steps = range(epoch * PER_EPOCH, (epoch + 1) * PER_EPOCH)
    return rows_of(np.concatenate([fashion.batch(spec, step)[0] for step in steps]), files)


def test_the_task_is_found_by_its_name():
    assert tasks.load("fashion") is fashion


def test_a_batch_is_float_pictures_and_integer_labels(files):
    images, labels = fashion.batch(make_spec(), 0)
    assert (images.shape, images.dtype) == ((BATCH, 28, 28, 1), np.float32)
    assert (labels.shape, labels.dtype) == ((BATCH,), np.int32)


def test_pixels_are_the_files_bytes_over_255_and_labels_belong_to_them(files):
    for step in range(PER_EPOCH):
        images, labels = fashion.batch(make_spec(), step)
        rows = rows_of(images, files)
        exact = files.train_images[rows].astype(np.float64) / 255
        np.testing.assert_array_equal(images[..., 0], exact.astype(np.float32))
        assert labels.tolist() == files.train_labels[rows].tolist()


def test_an_epoch_shows_no_picture_twice_and_drops_what_does_not_fill_a_batch(files):
    spec = make_spec(seed=3)
    for epoch in range(6):
        rows = epoch_rows(spec, epoch, files)
        assert len(set(rows)) == len(rows) == PER_EPOCH * BATCH


def test_over_epochs_every_picture_is_shown(files):
    spec = make_spec(seed=3)
    seen = {row for epoch in range(12) for row in epoch_rows(spec, epoch, files)}
    assert seen == set(range(COUNT))


def test_an_epoch_is_the_documented_shuffle(files):
    for epoch in (0, 1, 5):
        shuffle = np.random.default_rng([9, int.from_bytes(b"fashion"), epoch]).permutation(COUNT)
        rows = epoch_rows(make_spec(seed=9), epoch, files)
        assert rows == shuffle[: PER_EPOCH * BATCH].tolist()


def test_a_full_last_batch_is_kept(files):
    spec = make_spec(batch_size=COUNT)
    for step in (0, 1):
        assert sorted(rows_of(fashion.batch(spec, step)[0], files)) == list(range(COUNT))


def test_a_batch_depends_on_seed_and_step_alone(files):
    for options in ({}, {"augment": True, "normalise": True}):
        spec = make_spec(seed=4, **options)
        images, labels = fashion.batch(spec, 17)
        for step in (0, 9, 30):  # whatever was drawn before
            fashion.batch(make_spec(seed=step, **options), step)
        fashion._permutation.cache_clear()
        other = make_spec(seed=4, backend="mlx", variant="hc", **options)
        again, labels_again = fashion.batch(other, 17)
        np.testing.assert_array_equal(images, again)
        np.testing.assert_array_equal(labels, labels_again)


@pytest.mark.parametrize("other", [{"seed": 4, "step": 18}, {"seed": 5, "step": 17}])
def test_another_seed_or_step_is_another_batch(files, other):
    rows = rows_of(fashion.batch(make_spec(seed=4), 17)[0], files)
    others = rows_of(fashion.batch(make_spec(seed=other["seed"]), other["step"])[0], files)
    assert rows != others


def test_epochs_differ_in_their_order(files):
    orders = {tuple(epoch_rows(make_spec(), epoch, files)) for epoch in range(5)}
    assert len(orders) == 5


def test_a_batch_larger_than_the_set_is_refused(files):
    with pytest.raises(data.DataError, match="batch_size 24 is more than the 23 training images"):
        fashion.batch(make_spec(batch_size=24), 0)


def test_normalising_takes_off_the_mean_and_divides_by_the_deviation(files):
    plain, labels = fashion.batch(make_spec(), 2)
    normalised, same_labels = fashion.batch(make_spec(normalise=True), 2)
    assert normalised.dtype == np.float32
    exact = (plain.astype(np.float64) - 0.2860) / 0.3530
    np.testing.assert_allclose(normalised, exact, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(labels, same_labels)


# --- augmentation --------------------------------------------------------------------------------


def moved(picture, down, right):
    """The picture moved, pixel by pixel; what moves in is black."""
    result = np.zeros_like(picture)
    for row in range(28):
        for column in range(28):
            if 0 <= row - down < 28 and 0 <= column - right < 28:
                result[row, column] = picture[row - down, column - right]
    return result


def translations(spec, step):
    """By how much each picture of an augmented batch was moved: compared with all 25 ways."""
    plain, labels = fashion.batch(make_spec(seed=spec.seed), step)
    augmented, same_labels = fashion.batch(spec, step)
    np.testing.assert_array_equal(labels, same_labels)
    assert (augmented.shape, augmented.dtype) == (plain.shape, plain.dtype)
    found = []
    for picture, result in zip(plain[..., 0], augmented[..., 0], strict=True):
        ways = [
            (down, right)
            for down in range(-2, 3)
            for right in range(-2, 3)
            if (moved(picture, down, right) == result).all()
        ]
        assert len(ways) == 1
        found += ways
    return found


def test_augmentation_moves_pictures_by_up_to_two_pixels_each_way(files):
    spec = make_spec(seed=2, augment=True)
    found = [way for step in range(40) for way in translations(spec, step)]
    # 200 draws among 25 ways miss one with a chance of 25 × (24/25)^200 = 0.7 %.
    assert set(found) == {(down, right) for down in range(-2, 3) for right in range(-2, 3)}


def test_pictures_of_a_batch_move_differently_and_steps_too(files):
    spec = make_spec(seed=2, augment=True)
    assert len(set(translations(spec, 0))) > 1
    assert translations(spec, 0) != translations(spec, 1)
    assert translations(spec, 0) != translations(spec, PER_EPOCH)  # the same place, an epoch later
    assert translations(spec, 0) != translations(make_spec(seed=3, augment=True), 0)


def test_what_moves_in_is_black_before_it_is_normalised(files):
    augmented, _ = fashion.batch(make_spec(seed=2, augment=True), 0)
    both, _ = fashion.batch(make_spec(seed=2, augment=True, normalise=True), 0)
    exact = (augmented.astype(np.float64) - 0.2860) / 0.3530
    np.testing.assert_allclose(both, exact, rtol=0, atol=1e-6)


# --- the test set --------------------------------------------------------------------------------


def test_the_test_set_is_all_test_pictures_in_the_files_order(files):
    images, labels = fashion.test_set(make_spec())
    exact = files.test_images.astype(np.float64) / 255
    assert (images.shape, images.dtype) == ((TEST_COUNT, 28, 28, 1), np.float32)
    np.testing.assert_array_equal(images[..., 0], exact.astype(np.float32))
    assert labels.dtype == np.int32
    assert labels.tolist() == files.test_labels.tolist()


def test_the_test_set_is_normalised_but_never_augmented(files):
    plain, _ = fashion.test_set(make_spec())
    prepared, _ = fashion.test_set(make_spec(normalise=True, augment=True))
    exact = (plain.astype(np.float64) - 0.2860) / 0.3530
    np.testing.assert_allclose(prepared, exact, rtol=0, atol=1e-6)


def test_chance_loss_is_ln_10():
    assert fashion.chance_loss(make_spec()) == pytest.approx(math.log(10))
    assert fashion.chance_loss(make_spec()) == pytest.approx(2.302585, abs=1e-6)


def test_without_the_files_one_line_says_how_to_get_them(monkeypatch, tmp_path):
    monkeypatch.setenv("FATHOM_DATA", str(tmp_path))
    with pytest.raises(data.DataError) as caught:
        fashion.batch(make_spec(), 0)
    assert str(caught.value).startswith(f"{tmp_path / 'fashion-mnist'}: has no train-images-")
    assert str(caught.value).endswith("; run: fathom fetch")
