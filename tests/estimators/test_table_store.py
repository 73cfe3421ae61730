"""The row store: chunks give what one piece gives, nothing is left, and memory is not held."""

import io
import os

import numpy as np
import pytest
import torch
from rich.console import Console
from scipy import sparse

from adadps.data.identity import identities_of_rows, identities_of_texts, joined
from adadps.data.row_store import RowStore
from adadps.errors import DataError
from adadps.estimators.tables.saved_model import TableModel, load_rows
from adadps.estimators.tables.schema import Categorical, Label, Numeric, Schema
from adadps.training import progress
from support.commands import write

MODELS = {
    "texts": Schema(("text",), (), (), Label("label", ("fruit", "tools"))),
    "all": Schema(
        ("text", "more"),
        (Numeric("age", 0, 99),),
        (Categorical("kind", ("a", "b", "c")),),
        Label("label", ("fruit", "tools"), separator=";"),
    ),
    "numbers": Schema((), (Numeric("age", 0, 99),), (), Label("y", regression=True, low=0, high=1)),
}


@pytest.fixture
def table(tmp_path):
    rows = [
        [f"apple saw word{n} the", "and " * (n % 4) + "x", n, "abc"[n % 3],
         "fruit" if n % 2 else "tools;fruit" if n % 5 == 0 else "tools", n / 100]
        for n in range(60)
    ]  # fmt: skip
    rows[7][0] = "nothing that is known"
    return write(tmp_path / "t.csv", rows, ("text", "more", "age", "kind", "label", "y"))


@pytest.mark.parametrize("name", MODELS)
def test_chunks_give_exactly_what_one_piece_gives(tmp_path, table, name):
    schema = MODELS[name]
    if name == "texts":  # one label a row
        text = table.read_text(encoding="utf-8").replace("tools;fruit", "tools")
        table.write_text(text, encoding="utf-8")
    model = TableModel(schema, ("apple", "saw", "and", "the") if schema.texts else ())
    found = []
    for size in (1, 7, 1000):
        with RowStore(tmp_path, width=model.features.width) as store:
            held = load_rows(table, model, store, named=True, rows_at_once=size)
            assert len(store) == len(held) == 60
            features = held.features
            parts = (features.offsets, features.columns, features.values, held.targets)
            found.append([part.clone() for part in parts])
            assert held.texts.within([held.texts]).all()
    for other in found[1:]:
        assert all(torch.equal(one, two) for one, two in zip(found[0], other, strict=True))
    assert os.listdir(tmp_path) == ["t.csv"]


def test_files_have_no_name_and_rows_live_on_after_the_store_is_closed(tmp_path):
    with RowStore(tmp_path, width=3) as store:
        store.append(sparse.csr_matrix(np.eye(3, dtype=np.float32)), np.arange(3))
        held = store.examples()
        assert os.listdir(tmp_path) == []
    assert torch.equal(held.features.to_dense(), torch.eye(3))
    assert held.take(torch.tensor([2])).targets.tolist() == [2]


def test_rows_without_any_entry_are_fine(tmp_path):
    with RowStore(tmp_path, width=3) as store:
        store.append(sparse.csr_matrix((2, 3), dtype=np.float32), np.arange(2))
        assert torch.equal(store.examples().features.to_dense(), torch.zeros(2, 3))


def test_users_are_carried_in_all_chunks_or_in_none(tmp_path):
    rows = sparse.csr_matrix(np.eye(2, dtype=np.float32))
    with RowStore(tmp_path, width=2) as store:
        store.append(rows, np.arange(2), np.array([5, 9]))
        store.append(rows, np.arange(2), np.array([5, 7]))
        assert store.examples().users.tolist() == [5, 9, 5, 7]
        with pytest.raises(DataError, match="users in all chunks or in none"):
            store.append(rows, np.arange(2))
    with RowStore(tmp_path, width=2) as store:
        store.append(rows, np.arange(2))
        assert store.examples().users is None
        with pytest.raises(DataError, match="users in all chunks or in none"):
            store.append(rows, np.arange(2), np.array([5, 7]))


def test_other_widths_and_lengths_are_refused(tmp_path):
    with RowStore(tmp_path, width=2) as store:
        with pytest.raises(DataError, match="2 features"):
            store.append(sparse.csr_matrix(np.eye(3)), np.arange(3))
        with pytest.raises(DataError, match="a target each"):
            store.append(sparse.csr_matrix(np.eye(2)), np.arange(3))


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(DataError, match="--store"), RowStore(tmp_path / "nowhere", width=2):
        pass


def test_names_of_pieces_are_the_names_of_the_whole():
    texts = ["One", "two!", "three"]
    whole = identities_of_texts(texts)
    pieces = joined([identities_of_texts(texts[:1]), identities_of_texts(texts[1:])])
    assert len(pieces) == 3
    assert pieces.within([whole]).all()
    assert pieces.take(torch.tensor([2])).within([identities_of_texts(["Three."])]).all()


def test_names_of_sparse_rows_do_not_depend_on_pieces(monkeypatch):
    rows = sparse.random(50, 20, density=0.2, format="csr", rng=np.random.default_rng(0))
    with RowStore(None, width=20) as store:
        store.append(sparse.csr_matrix(rows, dtype=np.float32), np.zeros(50, np.int64))
        held = store.examples().features
    whole = identities_of_rows(held)
    monkeypatch.setattr("adadps.data.identity.ROWS_AT_ONCE", 7)
    pieces = identities_of_rows(held)
    dense = identities_of_rows(held.to_dense())
    assert pieces._hashes.tolist() == whole._hashes.tolist() == dense._hashes.tolist()
    assert pieces.within([whole]).all()


def test_rows_are_counted_while_they_become_features(tmp_path, table):
    model, told = TableModel(MODELS["texts"], ("apple",)), []
    text = table.read_text(encoding="utf-8").replace("tools;fruit", "tools")
    table.write_text(text, encoding="utf-8")
    with RowStore(tmp_path, width=1) as store:
        load_rows(table, model, store, named=False, rows_at_once=25, done=told.append)
    assert told == [25, 25, 10]


@pytest.mark.parametrize("rows", [None, 60])
def test_a_bar_needs_a_public_number_of_rows(rows, monkeypatch):
    shown = io.StringIO()
    monkeypatch.setattr(
        progress, "Console", lambda **_: Console(file=shown, force_terminal=True, width=100)
    )
    with progress.at_work("reading", rows=rows) as done:
        done(45)
    assert ("75%" in shown.getvalue()) is (rows is not None)
    assert "45" not in shown.getvalue()
