"""The handwritten digits of scikit-learn, split as in `train_digits.py`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

SEED = 0

Images = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]


class Split(NamedTuple):
    """Images as float32 [n, 1, 8, 8] in 0..1, and their labels as int64 [n]."""

    images: Images
    labels: Labels


def load_splits() -> tuple[Split, Split]:
    """Return the training set and the held-out quarter, stratified by digit."""
    digits = load_digits()
    images = (digits.images / 16.0).astype(np.float32)[:, None]
    labels = digits.target.astype(np.int64)
    parts = train_test_split(images, labels, test_size=0.25, random_state=SEED, stratify=labels)
    return Split(parts[0], parts[2]), Split(parts[1], parts[3])
