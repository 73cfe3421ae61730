"""Reviews, half of which are of one author."""

import random

HEADER = ["review", "stars", "author"]


def rows(count, authors):
    """Half of all rows are of one author."""
    rng = random.Random(0)
    for number in range(count):
        good = rng.random() < 0.5
        author = "a0" if number % 2 else f"a{rng.randrange(authors)}"
        yield [f"{'good great' if good else 'bad poor'} film", "five" if good else "one", author]
