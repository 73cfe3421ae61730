"""`adadps reproduce imdb-lstm`: the same chance for every method, a true epsilon."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from adadps import Accountant, dp_sgd, epsilon_of_run, poisson, privatize
from adadps.engine.passes.validation import objective
from adadps.errors import DataError, SettingError
from adadps.methods.side.fitted import FittedVectors
from adadps_experiments.data.imdb import Imdb
from adadps_experiments.data.imdb import Reviews as Texts
from adadps_experiments.reproduce.lstm import jobs, problems, reviews, table
from adadps_experiments.reproduce.lstm.jobs import LstmJob, run
from adadps_experiments.reproduce.lstm.methods import (
    LSTM_METHODS,
    Given,
    Longer,
    frequencies_of_words,
    in_units_of_gradients,
    methods_of,
)
from adadps_experiments.reproduce.lstm.problems import PAPER, SIZES, VECTORS, LstmSize
from adadps_experiments.reproduce.records import RecordFile
from adadps_experiments.reproduce.trials import Search

ROWS, WORDS, WIDTH, LENGTH = 300, 30, 4, 6


def made_up():
    draws = torch.Generator().manual_seed(0)

    def texts(rows):
        return torch.randint(0, WORDS, (rows, LENGTH), generator=draws)

    return reviews.EncodedReviews(
        train=texts(ROWS),
        labels=torch.arange(ROWS) % 2,
        test=texts(40),
        test_labels=torch.arange(40) % 2,
        unlabelled=texts(50),
        vectors=torch.randn(WORDS, WIDTH, generator=draws),
    )


@pytest.fixture
def small(monkeypatch):
    """A few random reviews of six words, and small models."""
    held = made_up()
    monkeypatch.setattr(problems, "reviews", lambda: held)
    monkeypatch.setattr(problems, "PUBLIC", 20)
    monkeypatch.setattr(problems, "ROWS_OF_TABLE", WORDS)
    monkeypatch.setattr(problems, "WIDTH", WIDTH)
    monkeypatch.setattr(problems, "HIDDEN", 3)
    monkeypatch.setattr(jobs, "PUBLIC_EPOCHS", 1)
    monkeypatch.setattr(jobs, "PUBLIC_BATCH", 10)
    for name, words in ((PAPER, 4), (VECTORS, LENGTH)):
        few = LstmSize(20, 2, 1, words=words, batch_without_noise=10, epochs_without_noise=1)
        monkeypatch.setitem(SIZES, name, few)
    jobs._problem.cache_clear()
    yield held
    jobs._problem.cache_clear()


def job_of(experiment, method, setting, **more):
    return LstmJob(experiment=experiment, method=method, setting=setting, seed=0, **more)


def test_the_papers_model_has_the_papers_number_of_weights():
    held = reviews.EncodedReviews(
        *[torch.zeros(1, 1, dtype=torch.long)] * 5, vectors=torch.zeros(1, 1)
    )
    model = problems.of_the_paper(held, 0)
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == 706_690


def test_every_method_has_six_settings():
    for name, method in LSTM_METHODS.items():
        assert len({json.dumps(setting) for setting in method.settings}) == 6, name


def test_six_methods_and_one_without_privacy_have_all_seeds():
    main = {name for name, method in LSTM_METHODS.items() if method.main}
    assert main == {
        "dp-sgd", "dp-adam", "adadps", "adadps-frequencies", "whitened", "warm-whitened", "adam"
    }  # fmt: skip


@pytest.mark.parametrize("experiment", problems.PARTS)
def test_public_validation_and_test_reviews_are_apart(small, experiment):
    small.train[:, -1] = torch.arange(ROWS)  # every review is another one
    small.test[:, -1] = torch.arange(ROWS, ROWS + 40)
    whole, tuned = (problems.problem(experiment, tuning=tuning) for tuning in (False, True))
    parts = (whole.public, tuned.train, tuned.test, whole.test)
    last = [set(part.features[:, -1].tolist()) for part in parts]
    assert [len(one) for one in last] == [20, 234, 46, 40]
    assert len(set.union(*last)) == ROWS + 40
    assert set(whole.train.features[:, -1].tolist()) == last[1] | last[2]
    assert whole.train.features.shape[1] == SIZES[experiment].words


def test_vectors_are_public_and_stay_what_they_are(small):
    model = problems.on_public_vectors(small, 0)
    assert "embedding.weight" not in dict(model.named_parameters()) or not (
        model.embedding.weight.requires_grad
    )
    assert torch.equal(model.embedding.weight, small.vectors)
    record = run(job_of(VECTORS, "dp-sgd", dict(LSTM_METHODS["dp-sgd"].settings[0])))
    assert 0 <= record["values"]["accuracy"] <= 1
    assert torch.equal(model.embedding.weight, small.vectors)


def test_the_readout_is_normalised_by_unlabelled_reviews_alone(small):
    model = problems.on_public_vectors(small, 0)
    shown = (model.read_out(small.unlabelled) - model.centre) / model.scale
    assert torch.allclose(shown.mean(0), torch.zeros(3), atol=1e-5)
    assert torch.allclose(shown.std(0), torch.ones(3), atol=1e-4)
    small.train.zero_()
    small.test.zero_()
    again = problems.on_public_vectors(small, 0)
    assert torch.equal(again.centre, model.centre)
    assert torch.equal(again.scale, model.scale)


def test_padding_does_not_count_in_the_mean(small):
    model = problems.of_the_paper(small, 0)
    words = torch.tensor([[0, 0, 0, 0, 5, 7]])
    outputs, _ = model.recurrent(model.embedding(words))
    assert torch.allclose(model.read_out(words), outputs[:, -2:].mean(1))
    assert torch.isfinite(model(torch.zeros(1, 6, dtype=torch.long))).all()


@pytest.mark.parametrize("method", LSTM_METHODS)
def test_every_method_trains(small, method):
    setting = dict(LSTM_METHODS[method].settings[0])
    model = VECTORS if method in methods_of(VECTORS) else PAPER
    record = run(job_of(model, method, setting, tuning=True))
    json.dumps(record, allow_nan=False)
    assert record["private"] is LSTM_METHODS[method].private
    if record["private"]:
        assert 2.7 < record["epsilon_pld"] <= 2.8 < record["epsilon_rdp"]
        sampler = poisson(examples=record["examples"], expected_size=20)
        chain = dp_sgd(
            privatize(clip_norm=1.0, noise_multiplier=record["noise_multiplier"]), lr=1.0
        )
        alone = epsilon_of_run(
            chain, sampler, record["steps"], delta=1 / 25_000, accountant=Accountant.PLD
        )
        assert record["epsilon_pld"] == pytest.approx(alone), "side information costs nothing"
    else:
        assert record["epsilon_pld"] is None


def test_the_papers_model_trains(small):
    record = run(job_of(PAPER, "whitened", dict(LSTM_METHODS["whitened"].settings[0])))
    assert 0 <= record["values"]["accuracy"] <= 1
    (row,) = table.rows_of(PAPER, {"dp-sgd": [record]})
    assert row["paper"] == 0.70
    assert row["mean"] == record["values"]["accuracy"]
    (ours,) = table.rows_of(VECTORS, {"dp-sgd": [record]})
    assert ours["paper"] is None
    assert table.figure_of({PAPER: {"whitened": [record]}}).startswith(b"\x89PNG")


def test_frequencies_scale_words_and_one_number_the_rest(small):
    small.unlabelled.zero_()
    small.unlabelled[:, -1] = 7
    small.unlabelled[:10, -2] = 5
    given = problems.problem(PAPER, tuning=True)
    scale = frequencies_of_words(given, 20.0).init(dict(given.model(0).named_parameters())).scale
    words = scale["embedding.weight"][:, 0]
    assert words[[0, 7]].tolist() == [1.0, 1.0], "every unlabelled review has them"
    assert words[5] == pytest.approx((10 / 50) ** -0.5)
    assert words[6] == pytest.approx(1e-3**-0.5)
    assert scale["linear.weight"].unique().tolist() == pytest.approx([1 / 20])
    assert "adadps-frequencies" not in methods_of(VECTORS), "its words are not trained"


def test_floors_do_not_depend_on_the_scale_of_the_loss(small):
    given = problems.problem(VECTORS, tuning=True)
    found = []
    for factor in (1.0, 100.0):
        scaled = replace(
            given, loss=lambda out, target, factor=factor: factor * given.loss(out, target)
        )
        asked = Given(scaled, {"floor": 2.0, "length": 3.0}, 1.0, 10, 0, 64)
        setting = in_units_of_gradients(asked).setting
        assert setting.keys() == {"epsilon", "length"}
        found.append(setting["epsilon"])
    assert found[1] == pytest.approx(100 * found[0], rel=1e-4)


def test_parts_are_tuned_beside_those_tuned_before(tmp_path, monkeypatch):
    monkeypatch.setattr(Search, "winner", lambda *_: {"winner": {}})
    held = {"datasets": {PAPER: {"methods": {"sgd": {}}}}}
    found = table.tune([VECTORS], RecordFile(tmp_path / "trials.jsonl"), 1, held)
    assert list(found["datasets"]) == [PAPER, VECTORS]
    assert set(found["datasets"][VECTORS]["methods"]) == set(methods_of(VECTORS))
    with pytest.raises(SettingError, match="It has: imdb-lstm, imdb-lstm-vectors"):
        problems.parts_of("imdb")
    with pytest.raises(DataError, match="--tune first"):
        table.run_rows(PAPER, {"datasets": {}}, 1, RecordFile(tmp_path / "runs.jsonl"))


def test_some_methods_alone_and_only_finished_runs(small, tmp_path, monkeypatch):
    held = {"datasets": {VECTORS: {"methods": {"sgd": {"winner": {"rate": 0.1}}}}}}
    monkeypatch.setattr(Search, "winner", lambda _, jobs: {"winner": {"name": jobs[0].method}})
    found = table.tune([VECTORS], None, 1, held, ["adam", "dp-sgd"])
    assert list(found["datasets"][VECTORS]["methods"]) == ["dp-sgd", "adam", "sgd"]
    with pytest.raises(SettingError, match="found 'adams'"):
        table.tune([VECTORS], None, 1, None, ["adams"])
    runs = RecordFile(tmp_path / "runs.jsonl")
    assert table.run_rows(VECTORS, held, 3, runs, 1, recorded=True) == {}
    runs.add(run(job_of(VECTORS, "sgd", {"rate": 0.1})))
    shown = table.run_rows(VECTORS, held, 3, runs, 1, recorded=True)
    assert {name: len(mine) for name, mine in shown.items()} == {"sgd": 1}


def test_vectors_of_words_have_the_same_size():
    terms = FittedVectors(
        ("good", "film", "good film"),
        np.ones(3, np.float32),
        np.array([[3, 4], [0, 2], [1, 1]], np.float16),
    )
    found = reviews.vectors_of(["film", "unheard", "good"], terms)
    assert found.shape == (4, 2)
    assert np.square(found).mean(1) == pytest.approx([0, 1, 0, 1])
    assert found[3] == pytest.approx(np.array([3, 4]) / np.sqrt(12.5))


def test_reviews_are_encoded_once_and_published_ones_left_out(tmp_path, monkeypatch):
    monkeypatch.setenv("ADADPS_CACHE", str(tmp_path))
    monkeypatch.setattr(reviews, "WIDTH", 2)
    public = tuple(f"a {kind} film number{n % 7}" for kind in ("good", "bad") for n in range(600))
    train = Texts(("good film", "a GOOD film  number1", "bad"), (1, 1, 0), ("a", "b", "c"))
    test = Texts(("film",), (1,), ("d",))
    monkeypatch.setattr(reviews, "imdb", lambda: Imdb(train, test))
    monkeypatch.setattr(reviews, "imdb_unlabelled", lambda: public)
    reviews.reviews.cache_clear()
    found = reviews.reviews()
    assert found.labels.tolist() == [1, 0], "one of them is among the public reviews"
    assert len(found.test) == 1
    assert (found.train[:, :-2] == 0).all()
    monkeypatch.setattr(reviews, "imdb", lambda: pytest.fail("read again"))
    reviews.reviews.cache_clear()
    assert torch.equal(reviews.reviews().train, found.train)
    reviews.reviews.cache_clear()


def test_gradients_reach_the_words_of_the_papers_model(small):
    """Else the noise of hundreds of thousands of weights would drown them."""
    given = problems.problem(PAPER, tuning=True)
    held = objective(given.model(0), given.loss, given.public)
    gradient = held.mean_gradient(held.params(), given.public)
    assert gradient["embedding.weight"].norm() > gradient["linear.weight"].norm() / 5


def test_longer_runs_end_with_the_noise_of_trials(small):
    """Length times noise multiplier times root of the steps stays what it was in the trial."""
    setting, found = {"clip": 0.5, "length": 3.0}, {}
    for tuning in (True, False):
        job = job_of(VECTORS, "dp-sgd", setting, tuning=tuning)
        record = run(replace(job, epochs=None if tuning else 8))
        (rate,) = re.findall(r"start=([0-9.e-]+)", record["chain"])
        length = float(rate) * record["clip_norm"]
        found[tuning] = (
            length * record["noise_multiplier"] * record["steps"] ** 0.5,
            length * record["steps"] ** 0.5,
        )
    assert found[False][0] == pytest.approx(found[True][0], rel=0.1), "280 rows and 234"
    assert found[False][1] < 0.8 * found[True][1]
    longer = Longer(adaptive=2.0, others=3.0)
    assert LSTM_METHODS["dp-adam"].for_run({"rate": 1.0}, longer) == {"rate": 0.5}
    assert LSTM_METHODS["dp-adam-pub"].for_run({"rate": 1.0}, longer) == {"rate": 1 / 3}
    assert jobs._longer(job_of(VECTORS, "sgd", {"rate": 1.0}), 280) == Longer()
