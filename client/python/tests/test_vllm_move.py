"""Keys that are moved are those that the model would have computed there."""

from __future__ import annotations

import types

import numpy as np
import pytest

from kvatlas.vllm.move import CannotMove, Packing, digits_of, rope_theta, rotated

SHAPE = (8, 2, 16)
THETA = 10_000.0


def rope(keys: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """The slow twin: pairs of channels as complex numbers, turned by their position."""
    half = keys.shape[-1] // 2
    out = np.empty_like(keys)
    for token, position in enumerate(positions):
        for channel in range(half):
            pair = keys[token, :, channel] + 1j * keys[token, :, channel + half]
            turned = pair * np.exp(1j * position * THETA ** (-2 * channel / (2 * half)))
            out[token, :, channel], out[token, :, channel + half] = turned.real, turned.imag
    return out


@pytest.mark.parametrize("by", [0, 1, -1, 17, -300, 100_000])
def test_rotation_moves_a_key_to_another_position(by: int) -> None:
    plain = np.random.default_rng(1).standard_normal(SHAPE)
    before = np.arange(500, 508) + (100_000 if by < 0 else 0)
    moved = rotated(rope(plain, before).astype(np.float32), by, THETA)
    assert np.allclose(moved, rope(plain, before + by), atol=1e-4)


def packing_of(order: np.ndarray) -> Packing:
    """A backend that keeps element `i` at `order[i]`."""
    digits = []
    for power in range(2):
        keys, values = digits_of(SHAPE, power)
        block = np.zeros(order.size, np.float32)
        block[order] = np.concatenate([keys.reshape(-1), values.reshape(-1)])
        digits.append(block)
    return Packing.of_digits(digits, SHAPE)


def test_any_order_in_a_block_is_found_out_and_kept() -> None:
    chance = np.random.default_rng(2)
    size = 2 * SHAPE[0] * SHAPE[1] * SHAPE[2]
    order = chance.permutation(size)
    packing = packing_of(order)
    assert np.array_equal(packing.keys.reshape(-1), order[: size // 2])
    assert np.array_equal(packing.values.reshape(-1), order[size // 2 :])
    tokens, start, count = 40, 5, 24
    positions = np.arange(100, 100 + tokens)
    plain = chance.standard_normal((tokens, *SHAPE[1:]))
    values = chance.standard_normal((tokens, *SHAPE[1:])).astype(np.float32)
    blocks = np.empty((tokens // SHAPE[0], size), np.float32)
    blocks[:, packing.keys] = rope(plain, positions).reshape(-1, *SHAPE)
    blocks[:, packing.values] = values.reshape(-1, *SHAPE)
    moved = packing.moved(blocks, start, count, -100 - start, THETA)
    expected = rope(plain[start : start + count], np.arange(count))
    assert moved.shape == (3, size)
    assert np.allclose(moved[:, packing.keys].reshape(expected.shape), expected, atol=1e-4)
    assert np.array_equal(moved[:, packing.values].reshape(-1), values[5:29].reshape(-1))


def test_a_block_that_keeps_something_else_is_not_moved() -> None:
    size = 2 * SHAPE[0] * SHAPE[1] * SHAPE[2]
    digits = [np.zeros(size, np.float32)] * 2
    with pytest.raises(CannotMove):
        Packing.of_digits(digits, SHAPE)


def test_only_a_plain_rope_is_moved() -> None:
    def check(**fields: object) -> float:
        return rope_theta(types.SimpleNamespace(**{"model_type": "llama", **fields}))

    assert check(rope_parameters={"rope_type": "default", "rope_theta": 5e5}) == 5e5
    assert check(rope_theta=1e4, rope_scaling=None) == 1e4
    for fields in (
        {"rope_theta": 1e4, "model_type": "gpt_neox"},
        {"rope_theta": 1e4, "rope_scaling": {"rope_type": "yarn"}},
        {"rope_theta": 1e4, "rope_scaling": {"type": "dynamic"}},
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}},
        {"rope_theta": 1e4, "partial_rotary_factor": 0.5},
        {},
    ):
        with pytest.raises(CannotMove):
            check(**fields)
