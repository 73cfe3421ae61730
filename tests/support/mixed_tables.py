"""A table of texts, numbers, categories and tags, and the command on it."""

import random

from adadps.data.tables import write_table
from support.commands import app, runner

HEADER = ["title", "age", "country", "tags", "price", "kind"]


def rows(count, first=0):
    """Age decides the kind, words the tags, age and country the price."""
    rng = random.Random(first)
    for number in range(first, first + count):
        age, country = rng.randint(0, 100), rng.choice(["de", "fr", "nl"])
        good, cheap = rng.random() < 0.5, rng.random() < 0.5
        words = f"{'good great' if good else 'bad poor'} {'free' if cheap else 'money'} n{number}"
        tags = f"{'praise' if good else 'blame'}{'; cheap' if cheap else ''}"
        price = 10 + 0.5 * age + (20 if country == "nl" else 0)
        yield [words, str(age), country, tags, f"{price:.2f}", "old" if age > 50 else "young"]


def make(path, content):
    with path.open("wb") as stream:
        write_table(stream, path, [HEADER, *content])
    return str(path)


def call(*arguments):
    return runner.invoke(app, [str(argument) for argument in arguments])
