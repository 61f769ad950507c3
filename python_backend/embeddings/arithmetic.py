"""What a BERT layer needs and numpy does not have, in fp32."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

# erf(x) = x * P(x²) / Q(x²) for |x| <= 4, and ±1 beyond, to the last bits of fp32; highest power first.
_P = np.array(
    [
        -2.72614225801306e-10,
        2.77068142495902e-08,
        -2.10102402082508e-06,
        -5.69250639462346e-05,
        -7.34990630326855e-04,
        -2.95459980854025e-03,
        -1.60960333262415e-02,
    ],
    np.float32,
)
_Q = np.array(
    [
        -1.45660718464996e-05,
        -2.13374055278905e-04,
        -1.68282697438203e-03,
        -7.37332916720468e-03,
        -1.42647390514189e-02,
    ],
    np.float32,
)
_ERF_END = np.float32(4.0)
_BLOCK_ROWS = 32  # whose dozens of passes stay in a core's cache
_HALF, _ONE, _SQRT_HALF = np.float32(0.5), np.float32(1.0), np.float32(0.5**0.5)


def gelu(x: Floats) -> Floats:
    """x * (1 + erf(x / sqrt 2)) / 2, the exact one of BERT, in the place of `x`."""
    for start in range(0, len(x), _BLOCK_ROWS):
        rows = x[start : start + _BLOCK_ROWS]
        scaled = rows * _SQRT_HALF
        np.minimum(scaled, _ERF_END, out=scaled)
        np.maximum(scaled, -_ERF_END, out=scaled)
        square = scaled * scaled
        scaled *= _polynomial(_P, square)
        scaled /= _polynomial(_Q, square)
        scaled += _ONE
        rows *= scaled
        rows *= _HALF
    return x


def _polynomial(coefficients: Floats, x: Floats) -> Floats:
    result: Floats = x * coefficients[0]
    result += coefficients[1]
    for coefficient in coefficients[2:]:
        result *= x
        result += coefficient
    return result


def normalize_layer(x: Floats, weight: Floats, bias: Floats, epsilon: float) -> Floats:
    """LayerNorm of each row; `x` is used up."""
    share = _ONE / np.float32(x.shape[1])
    x -= np.add.reduce(x, axis=1, keepdims=True) * share
    variance = np.einsum("ij,ij->i", x, x) * share
    x *= (_ONE / np.sqrt(variance + np.float32(epsilon)))[:, None]
    x *= weight
    x += bias
    return x


def attend(queries: Floats, keys: Floats, values: Floats) -> Floats:
    """Softmax attention over all positions; each is (..., positions, head size), queries already scaled."""
    scores = queries @ keys.swapaxes(-1, -2)
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    mixed: Floats = scores @ values
    mixed /= scores.sum(axis=-1, keepdims=True)  # there are fewer of these than of scores
    return mixed


def to_unit_length(vectors: Floats) -> Floats:
    """Each row divided by its L2 norm, as torch's `normalize` does it: a row of zeros stays one."""
    norms = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
    unit: Floats = vectors / np.maximum(norms, np.float32(1e-12))[:, None]
    return unit
