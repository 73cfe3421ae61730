"""The loaders on the real files in ADADPS_DATA; skipped where they are not found."""

import pytest

from adadps.data.debian import debian_packages
from adadps.data.identity import normalised
from adadps_experiments.data import amazon, imdb, titles
from adadps_experiments.data.finding import DATA, find
from adadps_experiments.data.named_sets import AMAZON, IMDB, TITLES


def needs(known):
    missing = [file.name for file in known.files if find(file) is None]
    return pytest.mark.skipif(
        bool(missing), reason=f"{', '.join(missing)} not found; set {DATA} to their folder"
    )


@needs(IMDB)
def test_imdb_has_the_official_split():
    held = imdb.imdb()
    for part in (held.train, held.test):
        assert len(part) == len(part.labels) == len(part.movies) == 25_000
        assert (part.labels.count(0), part.labels.count(1)) == (12_500, 12_500)
    assert held.train.texts[0].startswith("Bromwell High is a cartoon comedy.")
    assert held.train.labels[0] == 1
    assert held.train.movies[0] == "tt0453418"
    assert len(set(held.train.texts) & set(held.test.texts)) == 123
    assert len(set(held.train.movies) & set(held.test.movies)) == 1
    assert not any("<br />" in text for text in held.train.texts + held.test.texts)


@needs(IMDB)
def test_unlabelled_reviews_are_others_but_for_some():
    texts = imdb.imdb_unlabelled()
    assert len(texts) == 50_000
    assert not any("<br />" in text for text in texts)
    assert "(uh, enjoy) decades later. I did like" in texts[0]
    said, held = {normalised(text) for text in texts}, imdb.imdb()
    assert sum(normalised(text) in said for text in held.train.texts) == 374
    assert sum(normalised(text) in said for text in held.test.texts) == 269


@needs(AMAZON)
def test_amazon_is_balanced_in_every_domain():
    held = amazon.amazon_reviews()
    assert len(held) == len(held.labels) == len(held.domains) == 8_000
    pairs = list(zip(held.domains, held.labels, strict=True))
    for domain in amazon.DOMAINS:
        assert pairs.count((domain, 0)) == pairs.count((domain, 1)) == 1_000
    assert held.texts[0].startswith("One of the best Crichton novels\nSphere by Michael")


@needs(TITLES)
def test_titles_have_public_tags_and_a_fifth_is_held_out():
    held = titles.stackoverflow_titles()
    assert len(held.train) + len(held.test) == 30_000
    assert 0.19 < len(held.test) / 30_000 < 0.21
    assert len(titles.TAGS) == len(set(titles.TAGS)) == 100
    used = {tag for tags in held.train.tags + held.test.tags for tag in tags}
    assert used == set(titles.TAGS)
    assert all(held.train.tags)
    words = [{normalised(title) for title in part.titles} for part in (held.train, held.test)]
    assert not words[0] & words[1]
    assert held.test.titles[0] == "Why odbc_exec always fail?"
    assert held.test.tags[0] == ("php", "sql")


def test_the_split_of_titles_ignores_what_editing_changes():
    said = "How do I sort a list in Python?"
    same = ("how do i sort a list in python", "How  do I sort a <b>list</b> in PYTHON ?!")
    assert {titles.held_out(title) for title in same} == {titles.held_out(said)}
    share = sum(titles.held_out(f"title {number}") for number in range(5000)) / 5000
    assert 0.18 < share < 0.22


def test_debian_tags_are_of_the_public_list():
    from adadps.data.debian import TAGS

    assert len(TAGS) == len(set(TAGS)) == 598
    assert list(TAGS) == sorted(TAGS)
    used = {tag for package in debian_packages() for tag in package.tags}
    assert used <= set(TAGS)
    assert all("::" in tag for tag in TAGS)
