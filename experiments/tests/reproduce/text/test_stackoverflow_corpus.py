"""Stack Overflow itself as a problem, on small h5 files of its layout."""

from dataclasses import replace
from functools import partial
from itertools import groupby

import numpy as np
import pytest

from adadps_experiments.data.tff_stackoverflow import StackOverflowUsers, stackoverflow_train
from adadps_experiments.reproduce.federated import jobs as federated_jobs
from adadps_experiments.reproduce.federated.data import federation
from adadps_experiments.reproduce.federated.jobs import PUBLISHED
from adadps_experiments.reproduce.text import corpora
from adadps_experiments.reproduce.text.words import technical_words
from support.tff_files import write

TAGS = {"python": 9, "c#": 8, "vb . net": 7, "rare": 1}
KNOWN, MOST, WORDS = ("python", "c#", "vb . net"), 30, 200
DATE = "2010-01-08 09:34:05.1 UTC"


def user(number, posts=6):
    """Posts with one tag, two tags, a known beside an unknown one, an unknown one, and none."""
    tags = ("python", "c#|python", "vb . net|rare", "rare", "", "c#|unheard of")
    return [
        (f"how do i c# {number} - {post} ?", "Use Python", tags[post % 6], 1, DATE, "question")
        for post in range(posts)
    ]


USERS = {f"{number:08}": user(number) for number in range(1, 21)} | {"empty": []}
TESTED = {f"{number:08}": user(number) for number in range(31, 41)}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("ADADPS_DATA", str(tmp_path))
    monkeypatch.setattr(corpora, "STACK_OVERFLOW_POSTS", MOST)
    small = partial(corpora.stackoverflow_vocabulary, words=2, tags=len(KNOWN))
    monkeypatch.setattr(corpora, "stackoverflow_vocabulary", small)
    monkeypatch.setattr(corpora, "VOCABULARY", WORDS)
    write(tmp_path / "stackoverflow_train.h5", USERS)
    write(tmp_path / "stackoverflow_test.h5", TESTED)
    (tmp_path / "stackoverflow.word_count").write_text("how 30\ndo 20\ni 5\n", encoding="utf-8")
    counts = ", ".join(f'"{tag}": {count}' for tag, count in TAGS.items())
    (tmp_path / "stackoverflow.tag_count").write_text(f"{{{counts}}}", encoding="utf-8")
    return tmp_path


def all_posts(users):
    """Return text, tags and user of the posts with a known tag, in the file's order."""
    return {
        f"{row[0]} {row[1]}": (tags, name)
        for name, rows in users.items()
        for row in rows
        if (tags := [tag for tag in row[2].split("|") if tag in KNOWN])
    }


def test_posts_with_a_known_tag_are_taken_and_their_targets_are_theirs(folder):
    held = corpora._stackoverflow()
    assert (len(held.train), len(held.test)) == (MOST, MOST // 10)
    assert held.classes == len(KNOWN)
    for part, users in ((held.train, USERS), (held.test, TESTED)):
        known = all_posts(users)
        assert len(set(part.texts)) == len(part.texts)
        for text, target in zip(part.texts, part.targets, strict=True):
            tags, _ = known[text]
            expected = [(tag in tags) / len(tags) for tag in KNOWN]
            np.testing.assert_allclose(target, expected)


def test_users_stay_whole_and_come_in_a_random_order(folder):
    train = corpora._stackoverflow().train
    known = all_posts(USERS)
    names = [known[text][1] for text in train.texts]
    runs = [(name, len(list(run))) for name, run in groupby(names)]
    drawn = [name for name, _ in runs]
    assert len(drawn) == len(set(drawn))  # no user occurs twice
    assert drawn != sorted(drawn)
    assert {length for _, length in runs[:-1]} == {4}  # of four posts with a known tag
    of_number = dict(zip(train.users.tolist(), names, strict=True))
    assert [of_number[number] for number in train.users.tolist()] == names
    assert len(of_number) == len(drawn)
    assert train.groups == [str(number) for number in train.users]
    again = corpora._stackoverflow().train
    assert again.texts == train.texts


def test_fewer_posts_than_wanted_are_all_taken(folder):
    held = corpora._posts(stackoverflow_train(), 10_000, ["how", "c#"], KNOWN)
    assert set(held.texts) == set(all_posts(USERS))
    np.testing.assert_array_equal(held.counts.toarray(), np.ones((len(held), 2)))


def test_words_and_their_statistics_are_public(folder):
    """They depend neither on the posts nor on the word counts, which are private."""
    first = corpora._stackoverflow()
    words = technical_words(KNOWN, WORDS).words
    assert {"c#", "python", "vb", "net"} <= set(words)
    place = {word: column for column, word in enumerate(words)}
    counts = first.train.counts.toarray()
    assert counts.shape[1] == len(words) == WORDS
    assert set(counts[:, place["c#"]]) == set(counts[:, place["python"]]) == {1.0}
    others = {f"another {number}": user(number) for number in range(70, 90)}
    write(folder / "stackoverflow_train.h5", others)
    (folder / "stackoverflow.word_count").write_text("zebra 9\nyak 8\n", encoding="utf-8")
    second = corpora._stackoverflow()
    assert not set(first.train.texts) & set(second.train.texts)
    for name in ("idf", "tfidf"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
    np.testing.assert_array_equal(
        first.frequencies.values.numpy(), second.frequencies.values.numpy()
    )
    assert first.private_words is False


@pytest.fixture
def forgotten():
    """Forget what other tests have read from other files."""
    for held in (corpora.corpus, federation):
        held.cache_clear()
    yield
    for held in (corpora.corpus, federation):
        held.cache_clear()


@pytest.mark.usefixtures("folder", "forgotten")
def test_a_federation_of_its_users(monkeypatch):
    """Its users are those of the training file, whose posts are split; the test file has others."""
    held = federation("stackoverflow", 5, "paper", False)
    assert held.users == 5
    assert (len(held.train), len(held.test)) == (15, 5), "of four posts each, one is held out"
    assert sorted(np.unique(held.train.users)) == list(range(5))
    tuned = federation("stackoverflow", 5, "paper", True)
    assert (len(tuned.train), len(tuned.test)) == (10, 5)
    small = replace(PUBLISHED, users=5, cohort=2, rounds=2)
    monkeypatch.setattr(federated_jobs, "SCENARIOS", {PUBLISHED.name: small})
    setting = {"clip": 0.15, "length": 5.0, "floor": 0.01, "power": 0.5}
    job = federated_jobs.FederatedJob(
        PUBLISHED.name, "paper", federated_jobs.LOCAL, setting, 0, False, dataset="stackoverflow"
    )
    record = federated_jobs.run(job)
    assert (record["users"], record["rows"], record["private"]) == (5, 15, True)
    assert 0 <= record["values"]["accuracy"] <= 1


def test_the_file_is_closed_afterwards(folder):
    opened = StackOverflowUsers(folder / "stackoverflow_train.h5")
    corpora._posts(opened, 3, ["how"], KNOWN)
    assert not opened._file
