"""JSON lines, Parquet and chunks: what the readers take, and how they refuse."""

import gzip
import json
import re
import sys

import pyarrow
import pytest
from pyarrow import parquet

from adadps.data import tables
from adadps.data.tables import labels, read_chunks, read_table, table_writer, texts, write_table
from adadps.errors import DataError

HEADER = ["text", "number", "flag"]
ROWS = [["a, b", 1, True], ["line\nbreak é", None, False], ['say "x"', 2.5, None]]


def json_lines(*rows):
    return "\n".join(json.dumps(row) for row in rows).encode()


@pytest.mark.parametrize("name", ["t.jsonl", "t.ndjson", "t.json", "t.jsonl.gz", "t.JSONL"])
def test_json_lines_are_read_with_their_values(tmp_path, name):
    content = b"\n" + json_lines(*(dict(zip(HEADER, row, strict=True)) for row in ROWS)) + b"\n\n"
    packed = gzip.compress(content) if name.endswith("gz") else content
    (tmp_path / name).write_bytes(packed)
    table = read_table(tmp_path / name)
    assert (table.header, table.rows, table.lines) == (tuple(HEADER), ROWS, [2, 3, 4])
    assert table.texts("number") == ["1", "", "2.5"]
    assert table.texts("flag") == ["true", "false", ""]


def test_a_name_that_is_left_out_is_missing(tmp_path):
    (tmp_path / "t.jsonl").write_bytes(json_lines({"a": 1, "b": "x"}, {"b": "y"}))
    table = read_table(tmp_path / "t.jsonl")
    assert table.values("a") == [1, None]
    with pytest.raises(DataError, match="none on line 2"):
        table.column("a")


BAD_JSON_LINES = {
    "nothing": (b"", "found an empty file"),
    "no JSON": (b'{"a": 1}\n{"a": \n', "found that line 2 is none"),
    "a list": (b'{"a": 1}\n[1]\n', "something else on line 2"),
    "a list of all": (b'[{"a": 1}]', "something else on line 1"),
    "a name more": (b'{"a": 1}\n{"a": 1, "b": 2}\n', "'b' on line 2"),
    "a name twice": (b'{"a": 1, "a": 2}\n', "'a' twice"),
    "NaN": (b'{"a": 1}\n{"a": NaN}\n', "line 2"),
    "NUL": (b'{"a": "x"}\n{"a": "x\\u0000"}\n', "a NUL byte on line 2"),
    "latin-1": (b'{"a": "x"}\n{"a": "caf\xe9"}\n', "found other bytes on line 2"),
    "empty line": (b'{"a": 1}\n\n{"a": 2}\n', "found line 2 empty"),
    "damaged gzip": (gzip.compress(b'{"a": "xyz"}\n' * 9)[:-9], "found a damaged one"),
}


@pytest.mark.parametrize(("content", "message"), BAD_JSON_LINES.values(), ids=BAD_JSON_LINES)
def test_other_json_lines_are_refused(tmp_path, content, message):
    (tmp_path / "t.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=r"^Expected .*found .*\. \S.*[.}]$") as error:
        read_table(tmp_path / "t.jsonl")
    assert message in str(error.value)


def test_lists_in_a_column_that_is_used_are_refused(tmp_path):
    (tmp_path / "t.jsonl").write_bytes(json_lines({"a": "x", "b": [1]}, {"a": ["y"], "b": {}}))
    table = read_table(tmp_path / "t.jsonl")
    with pytest.raises(DataError, match="a list or an object on line 2"):
        table.column("a")


def write_parquet(path, **columns):
    parquet.write_table(pyarrow.table(columns), path, row_group_size=2)
    return path


@pytest.mark.parametrize("name", ["t.parquet", "t.csv"])
def test_parquet_is_read_by_its_name_or_its_first_bytes(tmp_path, name):
    file = write_parquet(tmp_path / name, text=["a", None, "c"], number=[1.5, 2.0, None])
    table = read_table(file)
    assert table.rows == [["a", 1.5], [None, 2.0], ["c", None]]
    with pytest.raises(DataError, match="none on row 2"):
        table.column("text")


def test_damaged_parquet_is_refused(tmp_path):
    whole = write_parquet(tmp_path / "whole.parquet", text=["abc"] * 50).read_bytes()
    middle = len(whole) // 2
    for name, content in {
        "cut": whole[:-6],
        "empty": b"",
        "text": b"text\nhello\n",
        "flipped": whole[: middle - 40] + bytes(40) + whole[middle:],
    }.items():
        file = tmp_path / f"{name}.parquet"
        file.write_bytes(content)
        with pytest.raises(DataError, match=r"^Expected .*found .*\. \S.*\.$"):
            read_table(file)


def test_parquet_has_no_gzip_around_it(tmp_path):
    with pytest.raises(DataError, match=r"remove the \.gz"):
        read_table(tmp_path / "t.parquet.gz")


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    file = write_parquet(tmp_path / "t.parquet", text=["a"])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"pip install 'adadps\[parquet\]'"):
        read_table(file)


@pytest.mark.parametrize("name", ["t.csv", "t.tsv.gz", "t.jsonl", "t.parquet"])
def test_chunks_are_the_table_in_pieces(tmp_path, name):
    rows = [[f"text {n}", str(n)] for n in range(10)]
    with (tmp_path / name).open("wb") as stream:
        write_table(stream, tmp_path / name, [["text", "id"], *rows])
    chunks = list(read_chunks(tmp_path / name, rows_at_once=4))
    assert [len(chunk) for chunk in chunks] == [4, 4, 2]
    whole = read_table(tmp_path / name)
    assert whole.rows == rows == [row for chunk in chunks for row in chunk.rows]
    assert whole.lines == [line for chunk in chunks for line in chunk.lines]
    first = 2 if name.startswith(("t.csv", "t.tsv")) else 1
    assert whole.lines == list(range(first, first + 10))


def test_long_rows_make_short_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "CHARACTERS_AT_ONCE", 1000)
    file = tmp_path / "t.csv"
    file.write_text("text\n" + ("x" * 400 + "\n") * 7, encoding="utf-8")
    assert [len(chunk) for chunk in read_chunks(file)] == [3, 3, 1]


def test_a_bad_row_is_found_with_its_line_in_a_later_chunk(tmp_path):
    file = tmp_path / "t.csv"
    file.write_text("a,b\n" + "1,2\n" * 9 + "1\n", encoding="utf-8")
    chunks = read_chunks(file, rows_at_once=4)
    assert len(next(chunks)) == 4
    with pytest.raises(DataError, match="found 1 on line 11"):
        list(chunks)


NEAREST = {
    "review": "Did you mean 'Reviews'?",
    "STARS": "Did you mean 'stars'?",
    "xyz": "Name one of them.",
}


@pytest.mark.parametrize(("name", "cure"), NEAREST.items())
def test_the_nearest_column_is_suggested(tmp_path, name, cure):
    file = tmp_path / "t.csv"
    file.write_text("Reviews,stars\nx,1\n", encoding="utf-8")
    with pytest.raises(DataError, match="found the columns Reviews, stars") as error:
        read_table(file).column(name)
    assert str(error.value).endswith(cure)


@pytest.mark.parametrize("source", ["s.csv", "s.jsonl", "s.parquet"])
@pytest.mark.parametrize("target", ["t.tsv", "t.jsonl.gz", "t.parquet"])
def test_tables_go_from_format_to_format(tmp_path, source, target):
    with (tmp_path / source).open("wb") as stream:
        write_table(stream, tmp_path / source, [["text", "id"], ["a\tb", "1"], ["é", "2"]])
    read = read_table(tmp_path / source)
    with (tmp_path / target).open("wb") as stream:
        names = [*read.header, "share"]
        with table_writer(stream, tmp_path / target, names, read.column_types, ["share"]) as writer:
            writer.write([[*row, 0.5] for row in read.rows])
    found = read_table(tmp_path / target)
    assert found.texts("text") == ["a\tb", "é"]
    assert found.texts("share") == ["0.5", "0.5"]
    assert found.values("share")[0] == ("0.5" if target == "t.tsv" else 0.5)


def test_parquet_keeps_its_types(tmp_path):
    source = write_parquet(tmp_path / "s.parquet", n=[1, None], tags=[["a"], []])
    read, target = read_table(source), tmp_path / "t.parquet"
    with (
        target.open("wb") as stream,
        table_writer(stream, target, read.header, read.column_types) as out,
    ):
        out.write(read.rows)
    assert parquet.read_table(target).equals(parquet.read_table(source))


def test_what_is_no_number_is_missing_in_json(tmp_path):
    target = tmp_path / "t.jsonl"
    with target.open("wb") as stream, table_writer(stream, target, ["x", "y"]) as writer:
        writer.write([[float("nan"), {"z": 1}]])
    assert read_table(target).rows == [[None, {"z": 1}]]


@pytest.mark.parametrize(
    ("name", "separator", "cure"),
    [
        ("a.csv", ";", "with ';' in its name: save the table with commas between columns"),
        ("a.csv", "|", "with '|' in its name: save the table with commas between columns"),
        ("a.csv", "\t", "with a tab in its name: name the file .tsv"),
        ("a.tsv", ",", "with ',' in its name: name the file .csv"),
    ],
)
@pytest.mark.parametrize("text", ["fine", "red, green\tand; so on | forth"])
def test_another_separator_is_named(tmp_path, name, separator, cure, text):
    """Whether or not the rows of the table have commas in them."""
    path = tmp_path / name
    path.write_text(f"text{separator}kind\n{text}{separator}a\n", encoding="utf-8")
    with pytest.raises(DataError, match=re.escape(cure)):
        read_table(path).column("text")


def test_a_single_column_may_have_any_name(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("text; raw\nfine\n", encoding="utf-8")
    assert read_table(path).column("text; raw") == ["fine"]


def test_an_empty_text_may_be_taken_as_it_is(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("text,kind\nfine,a\n,b\n", encoding="utf-8")
    table = read_table(path)
    with pytest.raises(DataError, match=r"on line 3.*--missing fill"):
        texts(table, "text", fill_missing=False)
    assert texts(table, "text", fill_missing=True) == ["fine", ""]
    with pytest.raises(DataError, match="Fill it in, or remove the line"):
        labels(table, "text", None)
