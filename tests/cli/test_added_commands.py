"""Commands of other distributions: listed from static text, loaded when called, clear if absent."""

import re
import sys
from importlib.metadata import EntryPoint

import pytest
from typer.testing import CliRunner

from adadps.cli import main
from adadps.cli.main import COMMANDS, COMMANDS_OF_EXPERIMENTS, FAILURE, GROUP, USAGE_ERROR, app

runner = CliRunner()


def run(*words, **environment):
    return runner.invoke(app, list(words), env={"COLUMNS": "200", **environment})


def plain(text):
    return " ".join(re.sub(r"\x1b\[[0-9;]*m", "", text).split())


@pytest.fixture
def provide(monkeypatch):
    """Replace the entry points of all installed distributions."""

    def replaced(**values):
        points = [EntryPoint(name, value, GROUP) for name, value in values.items()]
        monkeypatch.setattr(main, "entry_points", lambda *, group: points if group == GROUP else [])

    return replaced


@pytest.fixture
def greeting(tmp_path, monkeypatch):
    """A module with a command and a group of commands, which are not imported yet."""
    (tmp_path / "greeting.py").write_text(
        "import typer\n"
        "def greet(name: str = 'you') -> None:\n"
        "    '''Greet somebody.'''\n"
        "    print('hello', name)\n"
        "app = typer.Typer(help='Greetings.')\n"
        "app.command('hello')(greet)\n"
        "app.command('welcome')(greet)\n"
        "broken = 7\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("greeting", None)


def test_the_commands_of_the_experiments_are_installed_with_them():
    shown = plain(run("--help").stdout)
    for name, text in {**COMMANDS, **COMMANDS_OF_EXPERIMENTS}.items():
        assert f"{name} {text}" in shown.replace("│ ", "")
    assert "From adadps-experiments" in shown


@pytest.mark.parametrize("name", COMMANDS_OF_EXPERIMENTS)
def test_a_command_of_an_absent_distribution_names_the_package(provide, name):
    provide()
    shown = run(name, "--help")
    assert shown.exit_code == USAGE_ERROR == 2
    assert shown.stdout == ""
    message = plain(shown.stderr)
    assert f"Expected the package adadps-experiments, which provides `adadps {name}`" in message
    assert "found that it is not installed" in message
    assert "pip install adadps-experiments" in message


def test_help_without_the_experiments_lists_what_works(provide):
    provide()
    shown = run("--help")
    assert shown.exit_code == 0
    listed = plain(shown.stdout)
    assert all(text in listed for text in COMMANDS.values())
    assert not any(text in listed for text in COMMANDS_OF_EXPERIMENTS.values())
    assert "experiments" not in listed


def test_an_added_command_is_listed_without_being_imported(provide, greeting):
    provide(greet="greeting:greet", greetings="greeting:app")
    assert "greet Provided by greeting." in plain(run("--help").stdout).replace("│ ", "")
    assert run("plan", "--help").exit_code == 0
    assert "greeting" not in sys.modules


def test_an_added_command_is_loaded_when_it_is_called(provide, greeting):
    provide(greet="greeting:greet", greetings="greeting:app")
    assert run("greet", "--name", "Ada").stdout == "hello Ada\n"
    assert run("greetings", "welcome").stdout == "hello you\n"
    assert "Greet somebody." in run("greet", "--help").stdout


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("no_such_module_at_all:command", "ModuleNotFoundError: No module named"),
        ("greeting:no_such_name", "AttributeError"),
        ("greeting:broken", "AttributeError"),
    ],
)
def test_an_added_command_that_cannot_be_loaded_is_a_clear_error(provide, greeting, value, found):
    provide(greet=value)
    assert "greet" in run("--help").stdout, "help does not import it"
    shown = run("greet")
    assert shown.exit_code == FAILURE == 1
    message = plain(shown.stderr)
    assert f"Expected `adadps greet` in {value}, found {found}" in message
    assert f"pip install {value.partition(':')[0]}" in message


def test_a_command_of_the_product_cannot_be_replaced(provide, greeting):
    provide(plan="greeting:greet")
    assert "--noise-multiplier" in run("plan", "--help").stdout
    assert "greeting" not in sys.modules


@pytest.mark.parametrize(("typed", "meant"), [("trian", "train"), ("reproduse", "reproduce")])
def test_the_nearest_command_is_suggested_once(typed, meant):
    shown = run(typed)
    assert shown.exit_code == USAGE_ERROR
    message = plain(shown.stderr)
    assert f"No such command '{typed}'" in message
    assert message.count(f"Did you mean '{meant}'?") == 1


def complete(words, current):
    shell = {"_ADADPS_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(current)}
    return run(**shell)


def test_completion_knows_commands_and_their_options(provide, greeting):
    provide(greetings="greeting:app")
    assert complete("adadps ", 1).stdout.split() == [*COMMANDS, "greetings"]
    assert complete("adadps pl", 1).stdout.split() == ["plan"]
    assert complete("adadps plan --eps", 2).stdout.split() == ["--epsilon"]
    assert complete("adadps greetings ", 2).stdout.split() == ["hello", "welcome"]


def test_completion_after_an_absent_command_prints_no_error(provide):
    provide()
    shown = complete("adadps bench --", 2)
    assert shown.stderr == ""
    assert "installed" not in shown.stdout
