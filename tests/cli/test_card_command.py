"""`adadps card`: shows, checks, attaches an audit, and says clearly what it cannot read."""

from __future__ import annotations

import json
import re
import shutil

import jsonschema
import pytest
from typer.testing import CliRunner

from adadps import Accountant, load_result
from adadps.cli.main import app
from adadps.methods import plain_sgd
from adadps.report.card import card_of, schema
from support.small_runs import before_the_clip, trained

runner = CliRunner()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return trained(before_the_clip()).save(tmp_path_factory.mktemp("cards") / "model")


@pytest.fixture
def folder(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "model")


def card(*words):
    return runner.invoke(app, ["card", *map(str, words)], env={"COLUMNS": "200"})


def change(folder, name, *path, value):
    file = folder / name
    held = entry = json.loads(file.read_text(encoding="utf-8"))
    for step in path[:-1]:
        entry = entry[step]
    entry[path[-1]] = value
    file.write_text(json.dumps(held), encoding="utf-8")


def test_it_shows_the_card(folder):
    shown = card(folder)
    assert shown.exit_code == 0, shown.output
    for part in ("ε = ", "Mechanism", "a book", "Not covered by this guarantee"):
        assert part in shown.stdout


def test_a_card_without_privacy_says_so_first(tmp_path):
    shown = card(trained(plain_sgd(0.1)).save(tmp_path / "bare"))
    assert shown.exit_code == 0, shown.output
    assert "NOT PRIVATE: ε = ∞" in shown.stdout
    assert shown.stdout.index("NOT PRIVATE") < shown.stdout.index("Guarantee")


def test_json_keeps_to_the_schema(folder):
    found = json.loads(card(folder, "--json").stdout)
    jsonschema.Draft202012Validator(schema()).validate(found)
    assert found == json.loads((folder / "card.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["card.json", "card.md"])
def test_a_card_that_is_gone_is_made_anew_and_fails_the_check(folder, name):
    (folder / name).unlink()
    assert card(folder).exit_code == 0
    shown = card(folder, "--check")
    assert shown.exit_code == 1
    assert shown.stdout.splitlines()[0].startswith("DIFFERS: ")
    assert re.search(rf"^- {name}: expected a card in .*, found no such file$", shown.stdout, re.M)


EDITS = {
    "not covered": ("not_covered", 0, "Nothing."),
    "audit": ("audit", {"verdict": "proven"}),
    "model": ("model", "reads nothing private"),
    "format": ("format", 2),
    "made with": ("made_with", "adadps 99"),
    "meaning": ("guarantee", "in_words", "Nobody can learn anything."),
    "note": ("guarantee", "by_accountant", "rdp", "note", "checked by a notary"),
    "trials": ("tuning", "in_words", "all of them included in epsilon"),
    "unknown": ("certified", True),
    "unknown inside": ("guarantee", "certified", True),
}


@pytest.mark.parametrize("edit", EDITS)
def test_whatever_is_edited_on_a_card_fails_the_check(folder, edit):
    *path, value = EDITS[edit]
    change(folder, "card.json", *path, value=value)
    shown = card(folder, "--check")
    assert shown.exit_code == 1, shown.output
    assert f"- card.json, {path[0]}" in shown.stdout
    assert "card.md" not in shown.stdout


def test_a_name_that_stands_twice_on_a_card_fails_the_check(folder):
    file = folder / "card.json"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("{", '{"private": false, ', 1), encoding="utf-8")
    assert card(folder, "--check").exit_code == 1


@pytest.mark.parametrize(
    "edit",
    [
        lambda text: text.replace("ε = ", "ε = 0.", 1),
        lambda text: text.replace("- Floating point", "- Nothing", 1),
        lambda text: text + "Certified.\n",
        lambda text: "\n".join(text.split("\n")[:-4]),
        lambda text: "# A card\n" + text,
        lambda text: text.replace("\n", "\r\n"),
    ],
)
def test_whatever_is_edited_on_the_card_for_people_fails_the_check(folder, edit):
    file = folder / "card.md"
    text = file.read_text(encoding="utf-8")
    file.write_bytes(edit(text).encode("utf-8"))
    assert file.read_bytes() != text.encode("utf-8")
    shown = card(folder, "--check")
    assert shown.exit_code == 1, shown.output
    assert "- card.md" in shown.stdout


def test_a_folder_may_be_renamed_and_the_check_tells_the_name_on_the_card(folder):
    shown = card(folder.rename(folder.with_name("reviews")), "--check")
    assert shown.exit_code == 0, shown.output
    assert "AGREES" in shown.stdout
    assert "(card.md calls the model 'model')" in shown.stdout


def test_what_cannot_be_checked_does_not_end_well(tmp_path):
    shown = card(trained(plain_sgd(0.1)).save(tmp_path / "bare"), "--check")
    assert shown.exit_code == 1
    assert shown.stdout.startswith("NOT CHECKED: not private")


def test_the_check_agrees(folder):
    shown = card(folder, "--check", "--json")
    assert shown.exit_code == 0, shown.output
    found = json.loads(shown.stdout)["check"]
    assert (found["agrees"], found["card_in_folder"]) == (True, True)
    assert found["recomputed_epsilon"] == pytest.approx(found["stored_epsilon"])


def test_a_result_with_another_epsilon_fails_the_check(folder):
    for name in ("epsilon", "mechanism_epsilon"):
        change(folder, "result.json", "privacy", name, value=0.01)
    shown = card(folder, "--check")
    assert shown.exit_code == 1
    first, *fields = shown.stdout.splitlines()
    assert first.startswith("DIFFERS: ")
    assert re.match(
        r"- result.json, privacy.epsilon: expected [\d.]+ by PLD, found 0.01$", fields[0]
    )
    assert "Mechanism" not in shown.stdout, "the card itself is not asked for"


@pytest.mark.parametrize("value", [0.01, None, "1.0"])
def test_a_card_with_another_epsilon_fails_the_check(folder, value):
    change(folder, "card.json", "guarantee", "epsilon", value=value)
    shown = card(folder, "--check")
    assert shown.exit_code == 1
    first, field = shown.stdout.splitlines()
    assert first.startswith("DIFFERS: ")
    expected = f"{load_result(folder).privacy.epsilon:.9g} (from result.json)"
    assert field == f"- card.json, guarantee.epsilon: expected {expected}, found {shown_as(value)}"


def shown_as(value):
    return f"{value:g}" if isinstance(value, float) else json.dumps(value)


def test_a_check_that_agrees_is_one_line(folder):
    shown = card(folder, "--check")
    assert shown.exit_code == 0
    (line,) = shown.stdout.splitlines()
    assert re.match(
        r"AGREES: .* by PLD equals the stored one, .*; card.json and card.md state the same\.$",
        line,
    )


@pytest.mark.parametrize("edit", ["claim", "tuning"])
@pytest.mark.parametrize("charges", ["kept", "removed"])
def test_a_reason_not_to_check_does_not_hide_a_changed_epsilon(folder, edit, charges):
    """Whoever lowers epsilon could have called it a ledger's budget, or the price of a tuning."""
    for name in ("epsilon", "mechanism_epsilon"):
        change(folder, "result.json", "privacy", name, value=0.01)
    if edit == "claim":
        change(folder, "result.json", "settings", "claim", value="of a ledger")
    else:
        change(folder, "result.json", "privacy", "tuning", value={"trials": "3"})
    if charges == "removed":
        change(folder, "result.json", "privacy", "charges", value=None)
    (folder / "card.json").unlink()
    shown = card(folder, "--check")
    assert shown.exit_code == 1, shown.output
    assert shown.stdout.startswith("DIFFERS: ")
    assert "privacy.epsilon: expected" in shown.stdout
    assert "found 0.01" in shown.stdout


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b"null"])
def test_a_broken_card_fails_the_check_alone(folder, content):
    (folder / "card.json").write_bytes(content)
    assert card(folder).exit_code == 0
    assert card(folder, "--check").exit_code == 1


@pytest.mark.parametrize("damage", ["missing", "cut", "no folder", "unsound"])
def test_a_damaged_folder_is_refused(folder, damage):
    if damage == "missing":
        (folder / "result.json").unlink()
    elif damage == "cut":
        (folder / "result.json").write_text('{"format": 1, ', encoding="utf-8")
    elif damage == "unsound":
        change(folder, "result.json", "privacy", "epsilon", value="1.0")
    else:
        folder = folder / "nowhere"
    shown = card(folder)
    assert shown.exit_code == 1
    told = " ".join(shown.stderr.split())
    assert "result.json" in told
    assert ("epsilon again" in told) is (damage != "no folder")
    assert told.count("Expected") == 1
    assert shown.stdout == ""


# --- audits ---


@pytest.fixture
def audit(folder, tmp_path):
    privacy = load_result(folder).privacy
    words = [
        *("audit", "canaries", "--canaries", "60", "--epsilon", f"{privacy.epsilon:.6g}"),
        *("--delta", f"{privacy.delta:.6g}", "--json"),
    ]
    shown = runner.invoke(app, words)
    assert shown.exit_code == 0, shown.output
    file = tmp_path / "found.json"
    file.write_text(shown.stdout, encoding="utf-8")
    return file


def test_an_audit_is_attached_and_stays(folder, audit):
    shown = card(folder, "--audit", audit, "--json")
    assert shown.exit_code == 0, shown.output
    found = json.loads(shown.stdout)
    jsonschema.Draft202012Validator(schema()).validate(found)
    outcome = json.loads(audit.read_text(encoding="utf-8"))
    assert found["audit"]["lower_bound"] == outcome["lower_bound"]
    assert found == json.loads((folder / "card.json").read_text(encoding="utf-8"))
    assert found["audit"]["verdict"] in (folder / "card.md").read_text(encoding="utf-8")
    again = card(folder, "--json", "--check")
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["card"] == found


def test_an_audit_of_another_claim_changes_nothing(folder, audit):
    change(audit.parent, audit.name, "claimed_epsilon", value=7.0)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    shown = card(folder, "--audit", audit)
    assert shown.exit_code == 1
    assert "Repeat the audit with" in " ".join(shown.stderr.split())
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


@pytest.mark.parametrize("content", [None, b"", b"{}", b"\xff", b"[1]"])
def test_a_file_that_is_no_audit_is_refused(folder, tmp_path, content):
    file = tmp_path / "audit.json"
    if content is not None:
        file.write_bytes(content)
    shown = card(folder, "--audit", file)
    assert shown.exit_code == 1
    assert "Expected" in shown.stderr
    assert not (folder / "audit.json").exists()


def test_the_card_in_python_is_the_card_of_the_command(folder):
    described = load_result(folder).describe()
    assert json.loads(card(folder, "--json").stdout) == json.loads(json.dumps(card_of(described)))


def test_a_run_by_rdp_is_checked_by_rdp(tmp_path):
    folder = trained(accountant=Accountant.RDP).save(tmp_path / "rdp")
    shown = card(folder, "--check")
    assert shown.exit_code == 0, shown.output
    assert "recomputed by RDP equals the stored one" in shown.stdout
