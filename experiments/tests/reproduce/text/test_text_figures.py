"""Which lines of an experiment its figure draws, and under which labels."""

import pytest

from adadps_experiments.reproduce.text import tables
from adadps_experiments.reproduce.text.experiments import (
    BEST,
    EXPERIMENTS,
    PAPER,
    TableLine,
)


def test_without_private_lines_all_others_are_drawn():
    lines = [line for line in EXPERIMENTS["non-private"].lines if line.dataset == "imdb"]
    mine = [line for line in lines if line.features == PAPER]
    drawn = [line.method for line in tables._most_telling(mine)]
    assert drawn == ["sgd", "adam", "adas-public", "adas"]


def test_private_lines_take_the_room_that_they_need():
    free = [TableLine("imdb", PAPER, name, 2.0) for name in ("adam", "sgd", "adas", "adas-public")]
    for private, expected in ((1, 4), (6, 4), (7, 3), (20, 3)):
        crowd = [*[TableLine("imdb", PAPER, "dp-sgd", 2.0)] * private, *free]
        drawn = tables._most_telling(crowd)
        assert sum(line in free for line in drawn) == expected
        assert len(drawn) == min(10, private + 4)


def test_two_methods_of_one_name_are_told_apart_by_their_side_information():
    names = ("dp-sgd", "adadps", "adadps-wordfreq", "adas", "adas-public")
    lines = [TableLine("imdb", PAPER, name, 1.5) for name in names]
    assert list(tables._labels(lines).values()) == [
        "DP-SGD",
        "AdaDPS, before the clip, public word frequencies",
        "AdaDPS, before the clip, word list of general English",
        "AdaS, no privacy, public word frequencies",
        "AdaS, no privacy, public examples",
    ]
    assert tables._labels(lines[:2])[lines[1]] == "AdaDPS, before the clip"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_no_two_lines_of_a_panel_have_one_label(name):
    lines = EXPERIMENTS[name].lines
    kinds = {(line.dataset, line.features, line.epsilon) for line in lines}
    for kind in kinds:
        mine = [line for line in lines if (line.dataset, line.features, line.epsilon) == kind]
        assert len(set(tables._labels(mine).values())) == len(mine)


@pytest.mark.parametrize("features", [PAPER, BEST])
def test_figures_of_imdb_have_the_methods_of_the_papers_figures(features):
    lines = [
        line
        for line in EXPERIMENTS["imdb"].lines
        if (line.dataset, line.features, line.epsilon) == ("imdb", features, 1.5)
    ]
    drawn = [line.method for line in tables._most_telling(lines)]
    assert {"dp-sgd", "dp-adam", "adadps", "adadps-public", "adam"} <= set(drawn)
