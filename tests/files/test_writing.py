"""New files and folders: whole, or not at all."""

import pytest

from adadps.errors import DataError
from adadps.files import new_file, new_folder

MAKERS = {"folder": new_folder, "file": lambda target: new_file(target, overwrite=False)}


def fill(draft):
    (draft / "part" if draft.is_dir() else draft).write_text("content", encoding="utf-8")


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_nothing_is_there_before_the_end(tmp_path, make):
    target = tmp_path / "a" / "b" / "new"
    with make(target) as draft:
        fill(draft)
        assert not target.exists()
    assert target.exists()
    assert sorted(path.name for path in target.parent.iterdir()) == ["new"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_an_error_leaves_nothing(tmp_path, make, error):
    (tmp_path / "a").mkdir()

    def fail():
        with make(tmp_path / "a" / "b" / "c" / "new") as draft:
            fill(draft)
            raise error

    with pytest.raises(error):
        fail()
    assert [path.name for path in tmp_path.rglob("*")] == ["a"]


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_what_exists_stays(tmp_path, make):
    target = tmp_path / "precious"
    target.write_text("keep me", encoding="utf-8")
    with pytest.raises(DataError, match="nothing was overwritten"), make(target):
        pass
    assert target.read_text(encoding="utf-8") == "keep me"


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_what_appears_meanwhile_stays(tmp_path, make):
    target = tmp_path / "precious"

    def be_late():
        with make(target) as draft:
            fill(draft)
            target.write_text("keep me", encoding="utf-8")

    with pytest.raises(DataError, match="nothing was overwritten"):
        be_late()
    assert target.read_text(encoding="utf-8") == "keep me"
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


@pytest.mark.parametrize("name", ["x" * 300, "new/" + "x" * 300, "a\0b", "new/a\0b", "file/below"])
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_names_that_cannot_be_are_refused_before_any_work(tmp_path, make, name):
    (tmp_path / "file").write_text("keep me", encoding="utf-8")
    with pytest.raises(DataError, match="Expected"), make(tmp_path / name):
        pytest.fail("work was done for a name that cannot be")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_file_is_overwritten_when_asked_and_a_folder_never(tmp_path):
    target = tmp_path / "old"
    target.write_text("old", encoding="utf-8")
    with new_file(target, overwrite=True) as draft:
        fill(draft)
    assert target.read_text(encoding="utf-8") == "content"
    with pytest.raises(DataError, match="folder"), new_file(tmp_path, overwrite=True):
        pass
