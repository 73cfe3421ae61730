"""The table reader: what it takes, and how it refuses."""

import csv
import gzip

import pytest

from adadps.data.tables import LONGEST_FIELD, read_table, write_table
from adadps.errors import DataError

GOOD = {
    "plain": ("t.csv", b"text,label\nhello,a\n"),
    "byte order mark": ("t.csv", b"\xef\xbb\xbftext,label\nhello,a\n"),
    "windows line ends": ("t.csv", b"text,label\r\nhello,a\r\n"),
    "no last line end": ("t.csv", b"text,label\nhello,a"),
    "empty lines": ("t.csv", b"\n\ntext,label\nhello,a\n\n\r\n"),
    "tabs": ("t.tsv", b"text\tlabel\nhello\ta\n"),
    "tabs, upper case": ("t.TSV", b"text\tlabel\nhello\ta\n"),
    "gzip": ("t.csv.gz", gzip.compress(b"text,label\nhello,a\n")),
    "gzip of tabs": ("t.tsv.gz", gzip.compress(b"text\tlabel\nhello\ta\n")),
    "gzip under another name": ("t.csv", gzip.compress(b"text,label\nhello,a\n")),
    "dots in the name": ("2024.tsv.csv", b"text,label\nhello,a\n"),
}


@pytest.mark.parametrize(("name", "content"), GOOD.values(), ids=GOOD)
def test_tables_are_read(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    table = read_table(tmp_path / name)
    assert table.header == ("text", "label")
    assert (table.column("text"), table.column("label")) == (["hello"], ["a"])


BAD = {
    "nothing": (b"", "found an empty file"),
    "only a mark": (b"\xef\xbb\xbf", "found an empty file"),
    "header only": (b"text,label\n", "found only a header"),
    "short row": (b"text,label\nhello,a\nhello\n", "found 1 on line 3"),
    "empty line": (b'text,label\n"two\nlines",a\n\n\nhello,a\n', "found line 4 empty"),
    "empty line below the header": (b"text,label\n\nhello,a\n", "found line 2 empty"),
    "long row": (b'text,label\n"two\nlines",a\nx,b,c\n', "found 3 on line 4"),
    "repeated column": (b"text,label,text\na,b,c\n", "found 'text' more than once"),
    "NUL": (b"text,label\nhe\0llo,a\n", "a NUL byte on line 2"),
    "latin-1": (b"text,label\nhello,a\ncaf\xe9,b\n", "found other bytes on line 3"),
    "latin-1, far on": (b"text,label\n" + 9000 * b"x,a\n" + b"\xe9,b\n", "bytes on line 9002"),
    "utf-16": ("text,label\nhello,a\n".encode("utf-16"), "found other bytes on line 1"),
    "open quote": (b'text,label\n"hello,a\n', "that line 2 is not part of one"),
    "text after a quote": (b'text,label\n"hello"x,a\n', "that line 2 is not part of one"),
    "damaged gzip": (gzip.compress(b"text,label\nhello,a\n")[:-9], "found a damaged one"),
    "gzip that is none": (b"\x1f\x8bnothing", "found a damaged one"),
}


@pytest.mark.parametrize(("content", "message"), BAD.values(), ids=BAD)
def test_other_files_are_refused(tmp_path, content, message):
    file = tmp_path / "t.csv"
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"Expected .*found .*\. \S.*\.$") as error:
        read_table(file)
    assert message in str(error.value)
    assert str(file) in str(error.value)


@pytest.mark.parametrize("name", ["nowhere.csv", ".", "a\0b", "x" * 300, "caf\udce9.csv"])
def test_what_is_no_file_is_refused(tmp_path, name):
    with pytest.raises(DataError):
        read_table(tmp_path / name)


def test_a_missing_column_names_those_there_are(tmp_path):
    file = tmp_path / "t.csv"
    file.write_text("review,stars\nhello,a\n", encoding="utf-8")
    with pytest.raises(DataError, match="found the columns review, stars"):
        read_table(file).column("text")


@pytest.mark.parametrize("row", [",a", "  ,a", '"",a'])
def test_a_missing_value_names_its_line(tmp_path, row):
    file = tmp_path / "t.csv"
    file.write_text(f'text,label\n"two\nlines",b\n{row}\n', encoding="utf-8")
    with pytest.raises(DataError, match="none on line 4"):
        read_table(file).column("text")


def test_long_documents_are_read_and_the_limit_of_csv_is_put_back(tmp_path):
    file, before = tmp_path / "t.csv", csv.field_size_limit()
    file.write_text("text,label\n" + "word " * 100_000 + ",a\n", encoding="utf-8")
    assert len(read_table(file).column("text")[0]) == 500_000
    assert before < 500_000 < LONGEST_FIELD
    assert csv.field_size_limit() == before


def test_its_text_shows_nothing_of_its_content(tmp_path):
    file = tmp_path / "t.csv"
    file.write_text("text,label\nsecret,a\n", encoding="utf-8")
    assert "secret" not in repr(read_table(file))


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.csv.gz", "t.tsv.gz"])
def test_what_is_written_is_read_back(tmp_path, name):
    rows = [["a", "b c"], ['say "x"', "tab\there"], ["line\nbreak", "comma, é"]]
    file = tmp_path / name
    with file.open("wb") as stream:
        write_table(stream, file, rows)
    table = read_table(file)
    assert [list(table.header), *table.rows] == rows
    assert (file.read_bytes()[:2] == b"\x1f\x8b") == name.endswith(".gz")
