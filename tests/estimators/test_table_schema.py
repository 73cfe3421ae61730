"""Schemas: from files, from options, and what is read off the data."""

import json

import numpy as np
import pytest

from adadps.data.tables import Table, read_chunks
from adadps.errors import DataError, SettingError
from adadps.estimators.tables.request import TrainingRequest, merged, options_as_schema
from adadps.estimators.tables.schema import (
    Categorical,
    Label,
    Numeric,
    Schema,
    facts,
    read_schema_file,
    schema_of,
)
from adadps.estimators.tables.survey import complete
from support.commands import write

WHOLE = {
    "text": ["title"],
    "numeric": {"age": {"low": 18, "high": 100, "missing": 40}},
    "categorical": {"country": {"levels": ["de", "other"]}},
    "label": {"column": "stars", "classes": ["1", "2"]},
    "missing": "fill",
}


def test_a_schema_is_what_it_describes():
    schema = schema_of(WHOLE)
    assert schema == Schema(
        ("title",),
        (Numeric("age", 18, 100, 40),),
        (Categorical("country", ("de", "other")),),
        Label("stars", ("1", "2")),
        fill_missing=True,
    )
    assert schema.unknown == []
    assert schema_of(schema.describe()) == schema


def test_options_say_the_same():
    options = options_as_schema(
        texts=["title"],
        numeric=["age=18,100"],
        categorical=["country=de,other"],
        label="stars",
        classes="1,2",
        missing="fill",
    )
    missing = {"numeric": {"age": {"missing": 40}}}
    assert schema_of(merged(missing, options)) == schema_of(WHOLE)
    assert schema_of(merged(WHOLE, options)) == schema_of(WHOLE), (
        "the same twice is no contradiction"
    )


def test_contradictions_are_refused():
    with pytest.raises(SettingError, match="Expected 'low' once"):
        merged(WHOLE, options_as_schema(numeric=["age=20,100"]))
    with pytest.raises(SettingError, match="Expected 'column' once"):
        merged(WHOLE, options_as_schema(label="kind"))


BAD = {
    "no column": ({"text": []}, "at least one column"),
    "no label": ({"label": {}}, "a column of labels"),
    "a wrong name": ({"label": {"column": "stars", "clases": ["1", "2"]}}, "mean 'classes'"),
    "text as label": ({"label": {"column": "title"}}, "'title' more than once"),
    "a text column twice": ({"text": ["title", "title"]}, "'title' more than once"),
    "texts as one text": ({"text": "title"}, "a list of texts"),
    "one class": ({"label": {"column": "stars", "classes": ["1"]}}, "two different texts"),
    "classes as numbers": ({"label": {"column": "stars", "classes": [1, 2]}}, "a list of texts"),
    "bounds in disorder": ({"numeric": {"age": {"low": 3, "high": 2}}}, "two finite bounds"),
    "equal bounds": ({"numeric": {"age": {"low": 3, "high": 3}}}, "two finite bounds"),
    "one bound": ({"numeric": {"age": {"low": 3}}}, "two finite bounds"),
    "a bound as text": ({"numeric": {"age": {"low": "3", "high": 4}}}, "a number as low"),
    "a flag as bound": ({"numeric": {"age": {"low": True, "high": 4}}}, "a number as low"),
    "a list of numbers": ({"numeric": ["age"]}, "a JSON object"),
    "a level twice": ({"categorical": {"country": {"levels": ["a", "a"]}}}, "levels"),
    "no level": ({"categorical": {"country": {"levels": []}}}, "levels"),
    "missing": ({"missing": "drop"}, "refuse or fill"),
    "classes of a regression": (
        {"label": {"column": "stars", "regression": True, "classes": ["1", "2"]}},
        "bounds for a regression",
    ),
    "bounds of classes": ({"label": {"column": "stars", "low": 1, "high": 2}}, "found bounds"),
    "a separator within a class": (
        {"label": {"column": "stars", "classes": ["a;b", "c"], "separator": ";"}},
        "without the separator",
    ),
    "regression in words": ({"label": {"column": "stars", "regression": "yes"}}, "true or false"),
}


@pytest.mark.parametrize(("other", "message"), BAD.values(), ids=BAD)
def test_bad_schemas_are_refused(other, message):
    held = {"text": ["title"], "label": {"column": "stars"}} | other
    with pytest.raises(DataError, match=r"^Expected .*found") as error:
        schema_of(held)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "something else"),
        ("[]", "JSON object"),
        ('{"texts": []}', "Did you mean 'text'?"),
        ('{"format": 2}', "format 1"),
        ('{"text": [], "text": []}', "twice"),
    ],
)
def test_bad_schema_files_are_refused(tmp_path, content, message):
    file = tmp_path / "schema.json"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match="Expected") as error:
        read_schema_file(file)
    assert message in str(error.value)


def test_a_request_joins_file_and_options_and_strict_names_all_that_is_missing(tmp_path):
    file = tmp_path / "schema.json"
    given = {"text": ["title"], "numeric": {"age": {}}, "categorical": {"country": {}}}
    file.write_text(json.dumps(given), encoding="utf-8")
    asked = {"data": tmp_path, "epsilon": 1.0, "out": tmp_path / "m", "schema": file}
    declared = TrainingRequest(**asked, label="stars", examples=12).declared()
    assert (declared.schema.columns, declared.examples) == (
        ("title", "age", "country", "stars"),
        12,
    )
    with pytest.raises(SettingError) as error:
        TrainingRequest(**asked, label="stars", strict=True).declared()
    for part in ("bounds of 'age'", "levels of 'country'", "the classes", "number of examples"):
        assert part in str(error.value)


# What is read off the data

HEADER = ("title", "age", "country", "stars")


def table(tmp_path, *changes):
    rows = [[f"a title {n}", str(20 + n), "de" if n % 3 else "fr", "12"[n % 2]] for n in range(20)]
    for row, column, value in changes:
        rows[row][column] = value
    return write(tmp_path / "t.csv", rows, HEADER)


PARTLY = Schema(("title",), (Numeric("age"),), (Categorical("country"),), Label("stars"))


@pytest.mark.parametrize("rows_at_once", [1, 7, 100])
def test_what_is_missing_is_read_off_the_data_whatever_the_chunks(tmp_path, rows_at_once):
    known = complete(PARTLY, read_chunks(table(tmp_path), rows_at_once))
    assert known.numeric[0].bounds == (20, 39)
    assert known.categorical[0].levels == ("de", "fr")
    assert known.label.classes == ("1", "2")
    told = facts(PARTLY, known)
    assert "the bounds of 'age', read off the data as its smallest and largest value: 20 to 39" in (
        told
    )
    assert "the levels of 'country', read off the data: de, fr" in told
    assert "the classes, read off the data: 1, 2" in told


def test_what_is_declared_is_not_read(tmp_path):
    whole = schema_of(WHOLE)
    known = complete(whole, read_chunks(table(tmp_path)))
    assert known == whole
    assert "the bounds of 'age', declared: 18 to 100" in facts(whole, known)
    assert "that missing values of 'age' count as 40" in facts(whole, known)


REFUSED = {
    "a rare level": ((5, 2, "Lummerland"), "'country'.*on line 7"),
    "a rare class": ((5, 3, "3"), "'stars'.*on line 7"),
    "a missing class": ((5, 3, "NaN"), "'stars'.*on line 7"),
    "no number": ((5, 1, "forty"), "something else on line 7"),
    "not finite": ((5, 1, "inf"), "something else on line 7"),
    "NaN": ((5, 1, "nan"), "none on line 7"),
    "no age": ((5, 1, ""), "none on line 7"),
    "no level": ((5, 2, " "), "none on line 7"),
    "no label": ((5, 3, ""), "none on line 7"),
}


@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=REFUSED)
def test_what_must_not_be_read_is_refused_with_its_line(tmp_path, change, message):
    with pytest.raises(DataError, match=message) as error:
        complete(PARTLY, read_chunks(table(tmp_path, change)))
    assert "Lummerland" not in str(error.value)


def test_constant_numbers_and_one_class_are_refused(tmp_path):
    same_age = [(row, 1, "30") for row in range(20)]
    with pytest.raises(DataError, match="the same one everywhere"):
        complete(PARTLY, read_chunks(table(tmp_path, *same_age)))
    same_class = [(row, 3, "1") for row in range(20)]
    with pytest.raises(DataError, match=r"between 2 and 1000 different values.*found 1"):
        complete(PARTLY, read_chunks(table(tmp_path, *same_class)))


def test_missing_numbers_widen_no_bounds_if_they_are_filled(tmp_path):
    filled = Schema(("title",), (Numeric("age"),), (), Label("stars", ("1", "2")), True)
    known = complete(filled, read_chunks(table(tmp_path, (3, 1, ""))))
    assert known.numeric[0].bounds == (20, 39)
    assert known.numeric[0].filling == 29.5


def test_several_labels_are_counted_one_by_one():
    rows = [["x", "a; b"], ["y", "b"], ["z", "a;c;a"], ["x", "c; b"], ["y", "a;c"]]
    chunk = Table("t.csv", ("text", "tags"), rows, list(range(5)))
    schema = Schema(("text",), (), (), Label("tags", separator=";"))
    assert complete(schema, [chunk]).label.classes == ("a", "b", "c")
    rows[0][1] = " ; "
    with pytest.raises(DataError, match="only separators"):
        complete(schema, [chunk])


def test_bounds_of_a_regression_are_read_and_said():
    chunk = Table("t.csv", ("text", "y"), [["x", 1.5], ["y", "-2"]], [2, 3])
    schema = Schema(("text",), (), (), Label("y", regression=True))
    known = complete(schema, [chunk])
    assert np.allclose(known.label.bounds, (-2, 1.5))
    assert facts(schema, known)[-1].endswith("smallest and largest value: -2 to 1.5")
