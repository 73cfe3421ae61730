"""The keystream of the processor's instructions is OpenSSL's, bit by bit."""

import os

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from adadps.engine.noise import keystream, normals
from adadps.engine.noise.keystream import checked_keys, encrypt, halves, round_keys
from adadps.engine.noise.normals import BLOCK, Normals

offered = pytest.mark.skipif(not keystream.OFFERED, reason="OpenSSL encrypts here")


def by_openssl(key, number, size):
    stream = Cipher(algorithms.AES(key), modes.GCM(number.to_bytes(12, "big"))).encryptor()
    return np.frombuffer(stream.update(bytes(8 * size)), np.uint64)


def test_round_keys_are_those_of_the_standard():
    """FIPS 197, appendix A.3."""
    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    found = round_keys(key).astype("<u8").tobytes()
    assert len(found) == 15 * 16
    assert found[:32] == key
    assert found[32:48].hex() == "9ba354118e6925afa51a8b5f2067fcde"
    assert found[-16:].hex() == "fe4890d1e6188d0b046df344706c631e"


@offered
@pytest.mark.parametrize("size", [32, 64, 1024, BLOCK])
@pytest.mark.parametrize(
    "number", [0, 1, 255, 2**32 - 1, 2**33 + 7, 2**64 - 1, 2**95 + 3, 2**96 - 1]
)
def test_the_keystream_is_that_of_openssl(number, size):
    for key in (bytes(32), bytes(range(32)), os.urandom(32)):
        found = np.empty(size, np.uint64)
        encrypt(round_keys(key), *halves(number), found)
        assert np.array_equal(found, by_openssl(key, number, size))


@offered
def test_random_keys_and_numbers_have_the_keystream_of_openssl():
    for _ in range(300):
        key, number = os.urandom(32), int.from_bytes(os.urandom(12), "big")
        found = np.empty(96, np.uint64)
        encrypt(round_keys(key), *halves(number), found)
        assert np.array_equal(found, by_openssl(key, number, 96))


@offered
def test_openssl_encrypts_if_both_disagree(monkeypatch):
    """Nothing is drawn from a keystream that was not compared."""
    assert checked_keys(bytes(32)) is not None
    monkeypatch.setattr(keystream, "round_keys", lambda key: round_keys(key) ^ np.uint64(1))
    assert checked_keys(bytes(32)) is None


def drawn(source, size):
    found = np.empty(size)

    def keep(start, values):
        found[start : start + len(values)] = values

    source.draw(size, keep)
    return found


@offered
@pytest.mark.parametrize(
    "size", [7, 9_000, 20_001, BLOCK - 2, BLOCK, 3 * BLOCK + 17, 2 * BLOCK + 40_003]
)
def test_normals_are_the_same_whoever_encrypts(monkeypatch, size):
    key = os.urandom(32)
    ours = drawn(Normals(key), size)
    monkeypatch.setattr(normals, "checked_keys", lambda _: None)
    assert np.array_equal(ours, drawn(Normals(key), size))
