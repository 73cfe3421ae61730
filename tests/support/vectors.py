"""Small vectors and tokenizers, as files or as objects."""

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

WORDS = ("[UNK]", "film", "good", "bad")
MATRIX = np.array([[9, 9, 9], [1, 0, 0], [0, 2, 0], [0, 0, -4]], dtype=np.float32)


def small_tokenizer(words=WORDS):
    """Whole words between spaces; the first one stands for all others."""
    model = WordLevel({word: place for place, word in enumerate(words)}, unk_token=words[0])
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = Whitespace()
    return tokenizer


def save_model(folder, *, tokenizer=None, **tensors):
    """Write a folder with a matrix and a tokenizer, as model2vec does."""
    folder.mkdir(exist_ok=True)
    save_file(tensors or {"embeddings": MATRIX}, folder / "model.safetensors")
    (tokenizer or small_tokenizer()).save(str(folder / "tokenizer.json"))
    return folder
