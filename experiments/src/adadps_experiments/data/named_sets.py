"""The data sets that `adadps data` knows by name: their files, digests, homes and terms.

Only Debian's descriptions are part of the package. Digests are those of the files that the loaders
read; where a home publishes no checksum of its archive, the files made from it are still compared
with these.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from adadps.errors import SettingError
from adadps_experiments.data import conversion

GITHUB = "https://github.com"
GOOGLE = "https://storage.googleapis.com"
STANFORD = "https://ai.stanford.edu/~amaas/data/sentiment"
JHU = "https://www.cs.jhu.edu/~mdredze/datasets/sentiment"


@dataclass(frozen=True)
class RowsDigest:
    """The `adadps_experiments.data.digests.rows_digest` of some columns of a table."""

    columns: tuple[str, ...]
    sha256: str
    exact: tuple[str, ...] = ()
    """The columns in which every character counts."""


@dataclass(frozen=True)
class SetFile:
    """A file that a loader reads, identified by any one of its digests.

    ``sha256`` is that of the file itself, ``content`` that of its uncompressed content. Without a
    digest the file is not verified.
    """

    name: str
    sha256: tuple[str, ...] = ()
    content: str | None = None
    rows: RowsDigest | None = None

    @property
    def has_digest(self) -> bool:
        """Tell whether the file can be verified."""
        return bool(self.sha256 or self.content or self.rows)


@dataclass(frozen=True)
class Checksum:
    """The checksum of an archive, as its publishers or its users state it."""

    algorithm: str
    digest: str


@dataclass(frozen=True)
class Archive:
    """An archive at its public home, and how files of a data set are made from it."""

    url: str
    makes: tuple[str, ...]
    convert: Callable[[Path, Path], None]
    checksum: Checksum | None = None

    @property
    def name(self) -> str:
        """Return the file name of the archive."""
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class NamedSet:
    """A data set: what it is, its home, its terms, its files and archives."""

    name: str
    what: str
    home: str
    terms: str
    files: tuple[SetFile, ...] = ()
    archives: tuple[Archive, ...] = ()

    @property
    def embedded(self) -> bool:
        """Tell whether it is part of the package."""
        return not self.files

    def file(self, name: str) -> SetFile:
        """Return the file of that name."""
        return next(file for file in self.files if file.name == name)


IMDB = NamedSet(
    name="imdb",
    what="50,000 film reviews with labels and 50,000 without (Maas et al. 2011)",
    home=f"{STANFORD}/",
    terms="no licence stated; cite Maas et al. (ACL 2011)",
    files=(
        SetFile(
            "imdb_labelled_50k.csv.gz",
            ("6eeb99c015f68b4b130221d52be279833d88f138d332c6ee048648fb2c8f8599",),
            "659b23202572a99a8fc456cc7528519e730af2f2489b331b3ea6cf1098ec49d7",
            RowsDigest(
                ("split", "label", "movie", "text"),
                "95d89ace2ca2450d0a615bdd8d65a0d91df2307b3afa33674b60bf0689ce98a7",
                ("split", "label", "movie"),
            ),
        ),
        SetFile(
            "imdb_unsup_50k.csv.gz",
            ("42cad6a3e36a9934101dd92be5910e04adcfcfee444eb886bacde4e1ed33fe7e",),
            "d946cf4dcda20d80ed6585c26dd4484317f330d8911b675952ba5edf75229aae",
            RowsDigest(
                ("text",),
                "1a498919a2b5bea1cfb8ef538b86dc6c16591ac44845c4f86411a9cc2b7fb0a1",
            ),
        ),
    ),
    archives=(
        Archive(
            f"{STANFORD}/aclImdb_v1.tar.gz",
            ("imdb_labelled_50k.csv.gz", "imdb_unsup_50k.csv.gz"),
            conversion.imdb_tables,
            Checksum("md5", "7c2ac02c03563afcf9b574c7e56c153a"),
        ),
    ),
)

AMAZON = NamedSet(
    name="amazon",
    what="8,000 reviews of books, dvd, electronics, kitchen (Blitzer et al. 2007)",
    home=f"{JHU}/index2.html",
    terms="no licence stated; cite Blitzer et al. (ACL 2007)",
    files=(
        SetFile(
            "amazon_multidomain_8k.csv.gz",
            ("7d3137c08ec3ab98460f52a2a27f945e46f78b922032aa297d0c15f32e2840bc",),
            "1f38caf33fbc7d2f12b3b570205077629a52f0cbf8a77014d9dd00e6f7e0a658",
            RowsDigest(
                ("domain", "label", "title", "text"),
                "9489dbe2a5fa8cc4764a929b91f3ee2498a95703ec84b677e541d3a4d35c0036",
                ("domain", "label"),
            ),
        ),
    ),
    archives=(
        Archive(
            f"{JHU}/domain_sentiment_data.tar.gz",
            ("amazon_multidomain_8k.csv.gz",),
            conversion.amazon_table,
        ),
    ),
)

TITLES = NamedSet(
    name="stackoverflow-titles",
    what="30,000 titles of Stack Overflow questions with some of 100 tags, no users",
    home=f"{GITHUB}/hse-aml/natural-language-processing (week1, validation.tsv)",
    terms="Stack Overflow's content, CC BY-SA 3.0",
    files=(
        SetFile(
            "stackoverflow_titles_30k_100tags.csv.gz",
            ("7369bbfe5bfe52a557ce9938dd4f3e866e3d681a183284359b3b9af91dc66af2",),
            "045886793043982774caa23f1e7030fc6deb6965724fbadd0cfa159926d9ae61",
            RowsDigest(
                ("title", "tags"),
                "0f4fa5780f7c6c099899ebb60a07b62a4fb6ad42d41043a00b81364f9ff7f798",
                ("tags",),
            ),
        ),
    ),
    archives=(
        Archive(
            f"{GITHUB}/hse-aml/natural-language-processing/releases/download/week1/validation.tsv",
            ("stackoverflow_titles_30k_100tags.csv.gz",),
            conversion.titles_table,
        ),
    ),
)

STACKOVERFLOW = NamedSet(
    name="stackoverflow",
    what="Stack Overflow by user, as TensorFlow Federated gives it (342,477 users to train on)",
    home="https://www.tensorflow.org/federated/api_docs/python/tff/simulation/datasets/stackoverflow",
    terms="Stack Overflow's content, CC BY-SA 3.0",
    files=tuple(
        SetFile(name)
        for name in (
            "stackoverflow_train.h5",
            "stackoverflow_held_out.h5",
            "stackoverflow_test.h5",
            "stackoverflow.word_count",
            "stackoverflow.tag_count",
        )
    ),
    archives=(
        Archive(
            f"{GOOGLE}/tff-datasets-public/stackoverflow.word_count.tar.bz2",
            ("stackoverflow.word_count",),
            conversion.members("stackoverflow.word_count"),
            Checksum("sha256", "1dc00256d6e527c54b9756d968118378ae14e6692c0b3b6cad470cdd3f0c519c"),
        ),
        Archive(
            f"{GOOGLE}/tff-datasets-public/stackoverflow.tag_count.tar.bz2",
            ("stackoverflow.tag_count",),
            conversion.members("stackoverflow.tag_count"),
            Checksum("sha256", "6fe281cec490d9384a290d560072438e7e2b377bbb823876ce7bd6f82696772d"),
        ),
        Archive(
            f"{GOOGLE}/tff-datasets-public/stackoverflow.tar.bz2",
            ("stackoverflow_train.h5", "stackoverflow_held_out.h5", "stackoverflow_test.h5"),
            conversion.members(
                "stackoverflow_train.h5", "stackoverflow_held_out.h5", "stackoverflow_test.h5"
            ),
            Checksum("sha256", "99eca2f8b8327a09e5fc123979df2d237acbc5e52322f6d86bf523ee47b961a2"),
        ),
    ),
)

MNIST = NamedSet(
    name="mnist",
    what="70,000 handwritten digits, 28 x 28 (LeCun et al. 1998)",
    home=f"{GOOGLE}/tensorflow/tf-keras-datasets/mnist.npz",
    terms="CC BY-SA 3.0 as given by Keras",
    files=(
        SetFile(
            "mnist.npz",
            (
                "731c5ac602752760c8e48fbffcf8c3b850d9dc2a2aedcf2cc48468fc17b673d1",
                "06af5dfe73b70e3bc1c36439982b18a8d76803db9b544f6fdf838a37fbb01b64",
            ),
        ),
    ),
    archives=(
        Archive(
            f"{GOOGLE}/tensorflow/tf-keras-datasets/mnist.npz",
            ("mnist.npz",),
            conversion.as_it_is("mnist.npz"),
            Checksum("sha256", "731c5ac602752760c8e48fbffcf8c3b850d9dc2a2aedcf2cc48468fc17b673d1"),
        ),
    ),
)

FASHION_MNIST = NamedSet(
    name="fashion-mnist",
    what="70,000 pictures of clothes in ten classes, 28 x 28 (Xiao et al. 2017)",
    home="https://packages.debian.org/bookworm/dataset-fashion-mnist",
    terms="MIT (Expat), Zalando SE",
    files=(
        SetFile(
            "fashion-mnist-train-images-idx3-ubyte.gz",
            ("b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7",),
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        ),
        SetFile(
            "fashion-mnist-train-labels-idx1-ubyte.gz",
            ("0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056",),
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        ),
        SetFile(
            "fashion-mnist-t10k-images-idx3-ubyte.gz",
            ("cc1d090a38ace84dfa1aa66e3ada7c336ef481a96936906477e6dd344da56eaa",),
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        ),
        SetFile(
            "fashion-mnist-t10k-labels-idx1-ubyte.gz",
            ("8d3605d196f4be44669e46906da9733c8131fef761fdbfec72c424d5222f1a05",),
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
    ),
    archives=(
        Archive(
            "https://deb.debian.org/debian/pool/main/d/dataset-fashion-mnist/"
            "dataset-fashion-mnist_0.0~git20200523.55506a9-1_all.deb",
            (
                "fashion-mnist-train-images-idx3-ubyte.gz",
                "fashion-mnist-train-labels-idx1-ubyte.gz",
                "fashion-mnist-t10k-images-idx3-ubyte.gz",
                "fashion-mnist-t10k-labels-idx1-ubyte.gz",
            ),
            conversion.debian_members(
                "fashion-mnist-",
                "train-images-idx3-ubyte.gz",
                "train-labels-idx1-ubyte.gz",
                "t10k-images-idx3-ubyte.gz",
                "t10k-labels-idx1-ubyte.gz",
            ),
            Checksum("sha256", "39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0"),
        ),
    ),
)

DEBIAN = NamedSet(
    name="debian",
    what="30,300 descriptions of Debian packages with section and tags",
    home="part of adadps; made by scripts/build_debian_packages.py from Debian's package index",
    terms="free under the Debian Free Software Guidelines, see NOTICE",
)

NAMED_SETS = {
    known.name: known
    for known in (IMDB, AMAZON, DEBIAN, TITLES, STACKOVERFLOW, MNIST, FASHION_MNIST)
}


def named_set(name: str) -> NamedSet:
    """Return the data set called ``name``.

    >>> named_set("imdb").files[0].name
    'imdb_labelled_50k.csv.gz'
    >>> named_set("imbd")
    Traceback (most recent call last):
        ...
    adadps.errors.SettingError: Expected the name of a data set (imdb, amazon, debian, \
stackoverflow-titles, stackoverflow, mnist, fashion-mnist), found 'imbd'. Did you mean 'imdb'?
    """
    if name not in NAMED_SETS:
        near = difflib.get_close_matches(name.lower(), NAMED_SETS, n=1)
        hint = f"Did you mean '{near[0]}'?" if near else "Choose one of them."
        raise SettingError(
            f"Expected the name of a data set ({', '.join(NAMED_SETS)}), found '{name}'. {hint}"
        )
    return NAMED_SETS[name]
