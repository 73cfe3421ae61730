"""The content of the experiments: the paper's results, copied from it, and all its rows."""

from dataclasses import replace

import pytest

from adadps.errors import SettingError
from adadps_experiments.commands.reproduce import NAMES, _needed
from adadps_experiments.data.named_sets import STACKOVERFLOW
from adadps_experiments.reproduce.text import published
from adadps_experiments.reproduce.text.corpora import CORPORA
from adadps_experiments.reproduce.text.experiments import (
    BEST,
    EXPERIMENTS,
    PAPER,
    PLAIN,
    TF_IDF,
    experiment_of,
)
from adadps_experiments.reproduce.text.jobs import SIZES
from adadps_experiments.reproduce.text.methods import TEXT_METHODS
from adadps_experiments.reproduce.text.problem import ONE_PERCENT, PublicSource

ALL = pytest.mark.parametrize("name", EXPERIMENTS)
FEW, SHOP = PublicSource(proxy=250), PublicSource(proxy=8000)

ALL_METHODS = {
    "imdb": {
        "dp-sgd": 0.63,
        "dp-adam": 0.69,
        "dp-rmsprop": 0.67,
        "adadps-public": 0.80,
        "adadps-public-adam": 0.80,
    },
    "stackoverflow": {
        "dp-sgd": 0.28,
        "dp-adam": 0.30,
        "dp-rmsprop": 0.31,
        "adadps-public": 0.40,
        "adadps-public-adam": 0.40,
    },
}
COMPARE_PDA_DPMD = {
    "imdb": {"pda-dpmd": 0.62, "adadps-public": 0.80, "adadps": 0.75},
    "stackoverflow": {"pda-dpmd": 0.33, "adadps-public": 0.40, "adadps": 0.41},
}
COMPARE_PUBLIC_PRETRAIN = {
    "imdb": {"dp-sgd": 0.63, "warm-start": 0.73, "adadps-public": 0.80},
    "stackoverflow": {"dp-sgd": 0.28, "warm-start": 0.33, "adadps-public": 0.40},
}
COMPARE_DP_ADAM_PUB = {
    "imdb": {"dp-sgd": 0.63, "dp-adam-pub": 0.74, "adadps-public": 0.80},
    "stackoverflow": {"dp-sgd": 0.28, "dp-adam-pub": 0.31, "adadps-public": 0.40},
}
IMDB_TF_IDF = {
    "bag of words": {"dp-sgd": 0.62, "dp-adam": 0.68, "adadps-tfidf": 0.75, "ideal": 0.82},
    "TF-IDF": {"dp-sgd": 0.68, "dp-adam": 0.65, "adadps-tfidf": 0.80, "ideal": 0.83},
}
OOD = {"dp-sgd": 0.63, "out of distribution": 0.79, "in distribution": 0.80}
PUBLIC_DATA_SIZE = {"upper bound": 0.82, 0.01: 0.80, 0.002: 0.80, 0.0004: 0.75}
NON_PRIVATE = {
    "imdb": {"sgd": 0.66, "adam": 0.88, "adas-public": 0.88, "adas": 0.88},
    "stackoverflow": {"sgd": 0.38, "adam": 0.64, "adas-public": 0.64, "adas": 0.64},
}
"""The tables of the paper by label; only their results for logistic regression."""
BESIDE_EACH_OTHER = (ALL_METHODS, COMPARE_PDA_DPMD, COMPARE_PUBLIC_PRETRAIN, COMPARE_DP_ADAM_PUB)


def joined(dataset):
    found = {}
    for table in BESIDE_EACH_OTHER:
        for method, number in table[dataset].items():
            assert found.setdefault(method, number) == number  # the paper is consistent
    return found


def lines_of(name, **wanted):
    return [
        line
        for line in EXPERIMENTS[name].lines
        if all(getattr(line, key) == value for key, value in wanted.items())
    ]


def papers_of(name, **wanted):
    """Return the paper's result for each method of some lines."""
    return {line.method: line.paper for line in lines_of(name, **wanted) if line.paper is not None}


def test_published_numbers_are_those_of_the_paper():
    assert joined("imdb") == published.IMDB_ACCURACY
    assert joined("stackoverflow") == published.STACK_OVERFLOW_ACCURACY
    assert IMDB_TF_IDF["bag of words"] == published.IMDB_BAG_OF_WORDS
    assert IMDB_TF_IDF["TF-IDF"] == published.IMDB_TF_IDF
    assert NON_PRIVATE["imdb"] == published.IMDB_NON_PRIVATE
    assert NON_PRIVATE["stackoverflow"] == published.STACK_OVERFLOW_NON_PRIVATE


def test_published_settings_are_those_of_the_paper():
    """σ, batch and groups are from its appendix; epochs follow from its epsilons."""
    assert published.IMDB_RUN.epochs == 32
    assert published.STACK_OVERFLOW_RUN.epochs == 42
    for run, examples, sigma, group in (
        (published.IMDB_RUN, 25_000, 1.0, 4),
        (published.STACK_OVERFLOW_RUN, 246_092, 0.95, 2),
    ):
        assert (run.examples, run.batch) == (examples, 64)
        assert (run.noise_multiplier, run.group) == (sigma, group)


def test_numbers_of_the_bag_of_words_stand_beside_their_lines():
    assert papers_of("imdb", dataset="imdb", features=PAPER, epsilon=1.5) == joined("imdb")
    assert papers_of("imdb-tfidf", features=PAPER) == IMDB_TF_IDF["bag of words"]
    assert papers_of("imdb-tfidf", features=TF_IDF) == IMDB_TF_IDF["TF-IDF"]
    assert papers_of("imdb-tfidf", features=BEST) == {}


LABELS = {
    "table: all_methods": ALL_METHODS,
    "table: compare_PDA-DPMD": COMPARE_PDA_DPMD,
    "table: compare_public_pretrain": COMPARE_PUBLIC_PRETRAIN,
    "table: compare_dp-adam-pub": COMPARE_DP_ADAM_PUB,
}


@pytest.mark.parametrize(("name", "known"), [("imdb", "imdb"), ("stackoverflow", "stackoverflow")])
def test_a_number_stands_in_the_table_that_its_line_names(name, known):
    named = set()
    for line in EXPERIMENTS[name].lines:
        if line.paper is not None:
            assert LABELS[line.table][known][line.method] == line.paper
            named.add(line.table)
    assert "table: all_methods" in named


def test_numbers_of_training_without_privacy_stand_beside_their_lines():
    for dataset, known in (("imdb", "imdb"), ("so-titles", "stackoverflow")):
        assert papers_of("non-private", dataset=dataset, features=PAPER) == NON_PRIVATE[known]


@pytest.mark.parametrize("features", [PAPER, BEST])
def test_numbers_of_other_public_data_stand_beside_their_lines(features):
    wanted = {"dataset": "imdb", "features": features}
    found = papers_of("ood", **wanted, public=FEW, method="adadps-public")
    assert found == {"adadps-public": OOD["out of distribution"]}
    found = papers_of("ood", **wanted, public=ONE_PERCENT)
    assert found == {
        "dp-sgd": OOD["dp-sgd"],
        "adadps-public": OOD["in distribution"],
    }


@pytest.mark.parametrize("features", [PAPER, BEST])
def test_the_whole_shop_has_no_published_number(features):
    """The paper uses 250 reviews from another source, not 8,000."""
    assert lines_of("ood", features=features, public=SHOP)
    assert papers_of("ood", features=features, public=SHOP) == {}


def test_costs_are_those_of_the_run_that_the_numbers_come_from():
    datasets = {line.dataset for name in EXPERIMENTS for line in EXPERIMENTS[name].lines}
    assert {*datasets, "stackoverflow"} == set(published.OF_DATASET) == set(SIZES)
    for dataset, run in published.OF_DATASET.items():
        films = dataset.startswith("imdb")
        assert run == (published.IMDB_RUN if films else published.STACK_OVERFLOW_RUN)


@pytest.mark.parametrize("features", [PAPER, BEST])
def test_numbers_of_the_size_stand_beside_their_lines(features):
    wanted = {"dataset": "imdb", "features": features}
    for share in (0.01, 0.002, 0.0004):
        found = papers_of("public-size", **wanted, public=PublicSource(share=share))
        assert found["adadps-public"] == PUBLIC_DATA_SIZE[share]
    assert papers_of("public-size", **wanted)["ideal"] == PUBLIC_DATA_SIZE["upper bound"]


@ALL
def test_numbers_at_one_epsilon_do_not_stand_beside_another(name):
    """The paper's tables are at 1.5 for IMDB and at 0.84 for Stack Overflow."""
    for line in EXPERIMENTS[name].lines:
        if line.paper is not None and TEXT_METHODS[line.method].private:
            assert line.epsilon == (1.5 if line.dataset.startswith("imdb") else 0.84)


def test_published_numbers_are_somewhere():
    """Otherwise the test above would show nothing."""
    for name in EXPERIMENTS:
        assert sum(line.paper is not None for line in EXPERIMENTS[name].lines) >= 6


FIGURES = {
    "fig:with-public-private": {"dp-sgd", "dp-adam", "adadps-public", "dp-r-pub"},
    "fig:without-public-private": {"dp-sgd", "dp-adam", "adadps"},
}
"""The figures at 2.8 by their labels in the paper, which gives no numbers."""
TABLES = {
    **LABELS,
    "table: imdb_tf-idf": IMDB_TF_IDF,
    "table: dp-side_non_private": NON_PRIVATE,
}
OF_ONE_METHOD = {
    "table: OOD-public-data": {"dp-sgd", "adadps-public"},
    "table: public-data-size": {"ideal", "adadps-public"},
}


def test_a_line_names_a_table_or_figure_that_has_its_method_or_none():
    methods = {label: set().union(*table.values()) for label, table in TABLES.items()}
    known = {**methods, **FIGURES, **OF_ONE_METHOD}
    found = {label: set() for label in known}
    for name in EXPERIMENTS:
        for line in EXPERIMENTS[name].lines:
            if line.table:
                found[line.table].add(line.method)
                assert line.method in known[line.table]
            else:
                assert line.paper is None
    assert {label for label, mine in found.items() if not mine} == set()


def test_lines_of_figures_are_at_their_epsilon():
    labels = {line.method: line.table for line in lines_of("imdb", epsilon=2.8)}
    assert labels == {
        "dp-sgd": "fig:without-public-private",
        "dp-adam": "fig:without-public-private",
        "adadps": "fig:without-public-private",
        "adadps-public": "fig:with-public-private",
        "dp-r-pub": "fig:with-public-private",
        "adadps-two-sided": "",
        "dp-sgd-weighted": "",
    }
    assert not any(line.table for line in lines_of("stackoverflow") if line.epsilon != 0.84)
    assert not any(line.table for line in lines_of("ood", public=SHOP))


@ALL
def test_lines_refer_to_what_there_is(name):
    experiment = EXPERIMENTS[name]
    assert experiment.name == name
    for line in (*experiment.lines, *experiment.quick):
        assert line.method in TEXT_METHODS
        assert line.dataset in SIZES
        assert line.dataset in CORPORA
        assert line.features in (PAPER, TF_IDF, PLAIN, BEST)
        assert line.epsilon > 0 or not TEXT_METHODS[line.method].private
        assert line.public == ONE_PERCENT or TEXT_METHODS[line.method].uses_public
        assert not line.public.proxy or line.dataset == "imdb"
        assert not line.public.users or line.dataset == "debian-tags"
        assert line.method != "adadps-wordfreq" or line.dataset == "imdb"


@ALL
def test_no_line_stands_twice(name):
    lines = [
        (line.dataset, line.features, line.method, line.epsilon, line.public)
        for line in EXPERIMENTS[name].lines
    ]
    assert len(set(lines)) == len(lines)


@ALL
def test_a_quick_look_is_at_lines_of_the_whole(name):
    """Its runs then serve the whole experiment, and its settings are tuned."""
    experiment = EXPERIMENTS[name]
    known = {(one.dataset, one.features, one.method, one.public) for one in experiment.lines}
    quick = [(one.dataset, one.features, one.method, one.public) for one in experiment.quick]
    assert 3 <= len(quick) < len(experiment.lines)
    assert set(quick) <= known


@ALL
def test_one_data_set_has_its_own_lines(name):
    whole = EXPERIMENTS[name]
    for dataset in {line.dataset for line in whole.lines}:
        part = experiment_of(name, dataset)
        assert part.lines == tuple(lines_of(name, dataset=dataset))
        quick = tuple(line for line in whole.quick if line.dataset == dataset)
        assert 2 <= len(part.quick) <= max(4, len(quick))
        assert set(part.quick) <= set(part.lines)
        assert not quick or part.quick == quick
        assert (part.name, part.title) == (whole.name, whole.title)
    with pytest.raises(SettingError, match=r"found 'mnist'\. It has: "):
        experiment_of(name, "mnist")


@pytest.mark.parametrize(
    ("name", "dataset", "methods"),
    [
        ("stackoverflow", "debian-tags", ["dp-sgd", "dp-adam", "adadps", "adadps-two-sided"]),
        ("stackoverflow", "so-titles-general-words", ["dp-sgd", "dp-adam", "adadps"]),
        ("imdb", "imdb-private-words", ["dp-sgd", "adadps"]),
        ("ood", "debian-tags", ["dp-sgd", "adam", "adadps-public", "warm-start"]),
        ("public-size", "so-titles", ["dp-sgd", "ideal", "adam", "adadps-public"]),
        ("non-private", "so-titles", ["sgd", "adam", "adas-public", "adas"]),
    ],
)
def test_a_quick_look_at_another_data_set_is_at_a_few_lines(name, dataset, methods):
    quick = experiment_of(name, dataset).quick
    assert [line.method for line in quick] == methods
    assert len({(line.features, line.epsilon) for line in quick}) == 1
    if name == "stackoverflow":
        assert (quick[0].features, quick[0].epsilon) == (BEST, 3.0)


def test_stack_overflow_itself_is_there_where_its_files_are(tmp_path, monkeypatch):
    monkeypatch.setenv("ADADPS_DATA", str(tmp_path))
    monkeypatch.setenv("ADADPS_CACHE", str(tmp_path / "cache"))
    assert experiment_of("stackoverflow") == EXPERIMENTS["stackoverflow"]
    read = [file for file in STACKOVERFLOW.files if "held_out" not in file.name]
    for file in read[:-1]:
        (tmp_path / file.name).touch()
    assert experiment_of("stackoverflow") == EXPERIMENTS["stackoverflow"]  # one is missing
    (tmp_path / read[-1].name).touch()
    found = experiment_of("stackoverflow")
    own = [line for line in found.lines if line.dataset == "stackoverflow"]
    titles = lines_of("stackoverflow", dataset="so-titles")
    assert [replace(line, dataset="so-titles") for line in own] == titles
    assert found.lines[len(own) :] == EXPERIMENTS["stackoverflow"].lines
    assert experiment_of("imdb") == EXPERIMENTS["imdb"]
    assert _needed(own) == []  # nothing is fetched, such as the file that is not read


def test_every_experiment_is_a_command():
    others = {"toy", "moments", "defaults", "federated", "mnist-ae", "mnist", "fashion-mnist"}
    others.add("imdb-lstm")
    assert {*EXPERIMENTS, *others} == set(NAMES)


EVERYTHING = {
    "dp-sgd",
    "dp-adam",
    "dp-rmsprop",
    "dp-r-pub",
    "dp-adam-pub",
    "pda-dpmd",
    "warm-start",
    "adadps",
    "adadps-public",
    "adadps-public-adam",
    "adadps-two-sided",
    "dp-sgd-weighted",
    "ideal",
}
"""All methods in the paper's tables, and ours."""


@pytest.mark.parametrize("features", [PAPER, BEST])
def test_imdb_has_all_methods_on_both_kinds_of_features(features):
    assert {line.method for line in lines_of("imdb", features=features, epsilon=1.5)} > EVERYTHING


@pytest.mark.parametrize("dataset", ["so-titles", "debian-tags"])
def test_tags_have_all_methods_and_all_epsilons(dataset):
    methods = {
        epsilon: {
            line.method
            for line in lines_of("stackoverflow", dataset=dataset, features=BEST, epsilon=epsilon)
        }
        for epsilon in (0.84, 3.0, 8.5)
    }
    assert methods[3.0] > EVERYTHING
    for epsilon in (0.84, 8.5):
        assert {"dp-sgd", "dp-adam", "adadps", "adadps-two-sided"} <= methods[epsilon]
    assert lines_of("stackoverflow", dataset=dataset, features=PAPER)


def test_imdb_stands_at_both_epsilons_of_the_paper():
    """Its tables are at 1.5, its figures at 2.8, with and without public data for AdaDPS."""
    for epsilon in (1.5, 2.8):
        methods = {line.method for line in lines_of("imdb", features=PAPER, epsilon=epsilon)}
        assert {"dp-sgd", "dp-adam", "adadps", "adadps-public"} <= methods


def test_tf_idf_has_both_kinds_of_features_and_the_ideal():
    for features in (PAPER, TF_IDF, BEST):
        methods = {line.method for line in lines_of("imdb-tfidf", features=features)}
        assert {"dp-sgd", "dp-adam", "adadps-tfidf", "ideal"} <= methods


@ALL
def test_every_table_stands_on_the_features_that_are_best_for_dp_sgd(name):
    tables = {line.dataset for line in EXPERIMENTS[name].lines} - {"imdb-private-words"}
    for dataset in tables:
        kinds = {line.features for line in lines_of(name, dataset=dataset)}
        general = dataset.endswith("-general-words")  # beside a table that has the paper's features
        assert {PLAIN if general else PAPER, BEST} <= kinds


@ALL
def test_every_table_has_public_data_only_and_no_privacy(name):
    """Every table has the rows "no privacy" and "public data only, ε = 0"."""
    tables = {(line.dataset, line.features) for line in EXPERIMENTS[name].lines}
    for dataset, features in tables:
        if dataset == "imdb-private-words":  # two rows beside those of imdb
            continue
        methods = {line.method for line in lines_of(name, dataset=dataset, features=features)}
        assert {"adam", "public-only"} <= methods, (dataset, features)


def test_methods_without_side_information_have_words_of_general_english():
    """Titles also have technical words; packages have general ones in any case."""
    for dataset in ("so-titles-general-words", "debian-tags"):
        for epsilon in (0.84, 3.0, 8.5):
            found = lines_of("stackoverflow", dataset=dataset, features=PLAIN, epsilon=epsilon)
            assert {"dp-sgd", "dp-adam"} <= {line.method for line in found}
