"""What server and devices share: the model, its words, and who maintains which packages."""

from functools import cache

import adadps
from adadps.data.debian import SECTIONS, debian_packages
from adadps.methods.side import frequency

WORDS = adadps.PublicVectorizer(words=2000)  # public words: nothing is fitted


def new_model():
    """Return a linear model from words to sections."""
    return adadps.sparse_linear(len(WORDS.public_words()), len(SECTIONS))


def public_frequencies():
    """Return the public frequencies of the words: side information for every local step."""
    return frequency(WORDS.frequencies(), floor=0.01)


@cache
def packages():
    """Return the packages that come with adadps."""
    return debian_packages()


def rows_of(partition_id):
    """Return the packages of one person. A real device would read its own file here."""
    return adadps.examples(*rows_and_labels_of(partition_id))


def rows_and_labels_of(partition_id):
    """Return the same as a sparse matrix and a list."""
    known = sorted({package.user for package in packages() if not package.held_out})
    own = [p for p in packages() if not p.held_out and p.user == known[partition_id]]
    return _features_and_labels(own)


def made_up_rows():
    """Return rows of the kind and shape that devices have, which belong to nobody."""
    return adadps.examples(WORDS.transform(["words"]), [0])


def held_out_rows():
    """Return packages that no device has."""
    return _features_and_labels([package for package in packages() if package.held_out])


def _features_and_labels(chosen):
    texts = WORDS.transform([package.text for package in chosen])
    return texts, [SECTIONS.index(package.section) for package in chosen]
