"""What is assumed to be public is said by the caller and stands in the result: hazard 20."""

import pytest
import torch
from torch import nn

from adadps import dp_sgd, examples, fit, load_result, poisson, privatize
from adadps.data.provenance import NOT_DECLARED, AssumedPublic, declared, digest_of
from adadps.errors import DataError
from support.problems import squared


def trained(**options):
    data = examples(torch.randn(40, 2), torch.randn(40, 1))
    return fit(
        nn.Linear(2, 1),
        squared,
        data,
        method=dp_sgd(privatize(clip_norm=1.0, noise_multiplier=2.0), lr=0.1),
        sampler=poisson(examples=40, expected_size=4),
        steps=1,
        **options,
    )


KNOWN = AssumedPublic(
    classes=["spam", "ham"],
    vocabulary=["apple", "pear"],
    bounds={"age": (0, 120), "tokens": (1, 512)},
    others=["that mails are in English"],
)


def test_hazard_20_declarations_stand_in_the_result_and_survive(tmp_path):
    result = trained(assumed_public=KNOWN)
    found = result.privacy.assumed_public
    assert found == (
        "the number of examples, declared as 40",
        "the label set: 2 classes (spam, ham)",
        f"the vocabulary: 2 words with SHA-256 {digest_of(['apple', 'pear'])}",
        "bounds: age from 0 to 120",
        "bounds: tokens from 1 to 512",
        "that mails are in English",
    )
    again = load_result(result.save(tmp_path / "run"))
    assert again.privacy.assumed_public == found


def test_another_vocabulary_has_another_hash():
    one, other = (AssumedPublic(vocabulary=words) for words in (["a", "b"], ["ab"]))
    assert list(one) != [fact.replace("1 words", "2 words") for fact in other]


def test_hazard_20_nothing_declared_is_said():
    for nothing in ((), AssumedPublic()):
        assert trained(assumed_public=nothing).privacy.assumed_public[1:] == (NOT_DECLARED,)


@pytest.mark.parametrize("said", ["the label set", ["the label set"], ("the label set",)])
def test_sentences_of_ones_own_are_kept(said):
    assert declared(said) == ("the label set",)


def test_short_forms():
    known = AssumedPublic(classes=10, vocabulary="the words of a public dictionary")
    assert list(known) == [
        "the label set: 10 classes",
        "the vocabulary: the words of a public dictionary",
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        {"classes": 0},
        {"classes": []},
        {"classes": "spam"},
        {"vocabulary": ""},
        {"vocabulary": []},
        {"bounds": {"age": (120, 0)}},
    ],
)
def test_declarations_that_say_nothing_are_refused(wrong):
    with pytest.raises(DataError, match=r"Expected .*, found .*\. Declare"):
        AssumedPublic(**wrong)


@pytest.mark.parametrize("wrong", [[""], [" "], [3], ""])
def test_sentences_that_say_nothing_are_refused(wrong):
    with pytest.raises(DataError, match="facts in words"):
        declared(wrong)
