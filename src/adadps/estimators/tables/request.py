"""The request of `adadps train` and `adadps federate`, and what is refused before data is read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adadps.accounting.epsilon import Budget, require_epsilon
from adadps.errors import DataError, SettingError
from adadps.estimators.paid_mix import require_classes, require_weighted
from adadps.estimators.planner.methods import resolved, takes_side_information
from adadps.estimators.planner.plan import FederatedSettings, GivenSettings, UserColumn
from adadps.estimators.tables.schema import Schema, examples_of, read_schema_file, schema_of
from adadps.estimators.text import (
    VocabularySource,
)
from adadps.methods.side import Embeddings, embeddings
from adadps.types import Method, NoiseBy, TextFeatures

ROWS_PER_USER, ROWS_OF_A_DEVICE = 16, 1000
"""By default, rows of a user that count in one step, and rows that a device trains on."""
CHECKPOINT = ".checkpoint"
"""Suffix of the model's name: the default folder of the run's checkpoints."""


@dataclass(frozen=True)
class Declared:
    """What is known without the data. ``pays``: the rest about columns is measured and paid for."""

    schema: Schema
    examples: int | None
    method: Method
    user_column: UserColumn | None = None
    users: int | None = None
    pays: bool = False

    @property
    def count(self) -> int | None:
        """Return the declared number of units of privacy."""
        return self.examples if self.user_column is None else self.users

    @property
    def unit_name(self) -> str:
        """Return what the declared number counts."""
        return "examples" if self.user_column is None else "users"


@dataclass(frozen=True, kw_only=True)
class TrainingRequest:
    """The options of a training on a table, by their names; those that are None have defaults.

    A ``federation`` has further settings; its batch size counts users.
    """

    data: Path
    epsilon: float
    out: Path
    schema: Path | None = None
    texts: tuple[str, ...] = ()
    numeric: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    label: str | None = None
    classes: str | None = None
    label_separator: str | None = None
    regression: bool = False
    label_bounds: str | None = None
    missing: str | None = None
    rare: str | None = None
    examples: int | None = None
    user: str | None = None
    users: int | None = None
    rows_per_user: int | None = None
    method: Method = Method.AUTO
    features: TextFeatures = TextFeatures.AUTO
    embeddings: str | None = None
    embeddings_because: str | None = None
    side: str | None = None
    side_source: str | None = None
    side_because: str | None = None
    public: Path | None = None
    public_because: str | None = None
    delta: float | None = None
    batch_size: float | None = None
    epochs: float | None = None
    clip_norm: float | None = None
    lr: float | None = None
    words: int = 10_000
    language: str = "en"
    negation: bool = True
    ledger: Path | None = None
    ledger_budget: float | None = None
    checkpoint: Path | None = None
    store: Path | None = None
    strict: bool = False
    trials: int | None = None
    test: Path | None = None
    federation: FederatedSettings | None = None
    processes: int = 1

    @property
    def run_folder(self) -> Path:
        """Return the folder of the run's checkpoints."""
        return self.checkpoint or self.out.with_name(f"{self.out.name}{CHECKPOINT}")

    @property
    def given(self) -> GivenSettings:
        """Return the settings that are not left to the rule."""
        return GivenSettings(
            batch_size=self.batch_size, epochs=self.epochs, clip_norm=self.clip_norm, lr=self.lr
        )

    @property
    def vocabulary_source(self) -> VocabularySource:
        """Return where the public vocabulary comes from."""
        return VocabularySource(
            words=self.words,
            language=self.language,
            negation=self.negation,
            side=self.side,
            side_source=self.side_source,
            side_because=self.side_because,
            public=self.public,
            public_because=self.public_because,
            fits_vectors=self.features is not TextFeatures.WORDS,
        )

    def declared(self) -> Declared:
        """Return what is known without the data; refuse at once what no data can correct."""
        require_epsilon(self.epsilon)
        if self.delta is not None:
            Budget(self.epsilon, self.delta)
        _ = self.given
        self._require_ledger()
        self._require_distinct_folders()
        schema, examples = self._schema()
        self._require_declared(schema, examples)
        self._require_users(schema)
        pays = bool(schema.unknown) and self._pays()
        method = self.method
        if method is Method.AUTO and self.side == "none":
            method = Method.DP_SGD
        on_devices = self.federation is not None
        self._require_text_features(schema)
        informed = bool(schema.texts) and self.features is not TextFeatures.EMBEDDINGS
        method = resolved(method, informed=informed, on_devices=on_devices)
        self._require_side(schema, method)
        if self.features is TextFeatures.CHOOSE:
            self._require_choice(schema, method, pays)
        if self.user is None:
            return Declared(schema, examples, method, pays=pays)
        usual = ROWS_PER_USER if self.federation is None else ROWS_OF_A_DEVICE
        column = UserColumn(self.user, self.rows_per_user or usual)
        return Declared(schema, examples, method, column, self.users, pays)

    def _pays(self) -> bool:
        """Return whether what is not declared is paid for; devices with own noise cannot."""
        if self.rare not in (None, "refuse", "other"):
            raise SettingError(f"Expected refuse or other for --rare, found '{self.rare}'.")
        pays = self.rare == "other"
        if pays and self.federation is not None and self.federation.noise is not NoiseBy.SERVER:
            raise SettingError(
                f"Expected --noise server with --rare other, found --noise "
                f"{self.federation.noise.value}: somebody has to count the rows of all users, and "
                "devices that add their own noise trust nobody with them. Declare classes, levels "
                "and bounds."
            )
        return pays

    def _schema(self) -> tuple[Schema, int | None]:
        options = options_as_schema(
            texts=self.texts,
            numeric=self.numeric,
            categorical=self.categorical,
            label=self.label,
            classes=self.classes,
            separator=self.label_separator,
            regression=self.regression,
            label_bounds=self.label_bounds,
            missing=self.missing,
            examples=self.examples,
        )
        file = read_schema_file(self.schema) if self.schema is not None else {}
        held = merged(file, options)
        try:
            return schema_of(held), examples_of(held)
        except DataError as error:
            if self.schema is not None:
                raise DataError(f"{error} (The schema is {self.schema}.)") from error
            raise SettingError(str(error)) from error

    def _require_declared(self, schema: Schema, examples: int | None) -> None:
        count = examples if self.user is None else self.users
        what = "the number of examples" if self.user is None else "the number of users"
        unknown = [] if self._pays() else schema.unknown
        missing = [*unknown, *([what] if count is None else [])]
        if self.strict and missing:
            cure = " Or pay for what is not declared about columns: --rare other." * bool(unknown)
            raise SettingError(
                f"Expected everything declared with --strict, found that {', '.join(missing)} "
                f"would be read off the private data. Declare them by options or by --schema.{cure}"
            )

    def _require_users(self, schema: Schema) -> None:
        if self.user is None and (self.users is not None or self.rows_per_user is not None):
            raise SettingError(
                "Expected a column of users for --users and --rows-per-user, found none. Add "
                "--user COLUMN."
            )
        if self.user is None:
            return
        if self.examples is not None:
            raise SettingError(
                "Expected a number of users with --user, found --examples. Give --users instead: "
                "epsilon protects users, so users are counted."
            )
        if self.user in schema.columns:
            raise SettingError(
                f"Expected a separate column of users, found '{self.user}', which is a feature "
                "or the label too. A model that reads the user of a row cannot protect users."
            )
        if schema.unknown and not self._pays():
            raise SettingError(
                f"Expected everything declared with --user, found that {', '.join(schema.unknown)} "
                "would be read off the data, where it may be that of a single user. Declare it by "
                "options (--classes a,b,c) or by --schema, or pay for it: --rare other."
            )

    def _require_text_features(self, schema: Schema) -> None:
        given = [self.embeddings, self.embeddings_because]
        if self.features is not TextFeatures.AUTO and not schema.texts:
            raise SettingError(
                f"Expected a column of texts for --features {self.features.value}, found none. "
                "Name one by --text, or leave --features out."
            )
        if any(given) and (self.features is TextFeatures.WORDS or not schema.texts):
            raise SettingError(
                "Expected texts that become embeddings for --embeddings, found none: give --text, "
                "and --features auto, both or embeddings."
            )
        if self.embeddings_because is not None and self.embeddings is None:
            raise SettingError(
                "Expected vectors for --embeddings-because, found none. Add --embeddings SOURCE."
            )

    def _require_choice(self, schema: Schema, method: Method, pays: bool) -> None:
        """Refuse what the mix of words and embeddings cannot be chosen for."""
        if self.federation is not None:
            raise SettingError(
                "Expected features by the rule in a federation, found --features choose: "
                "candidates would be tried on rows that do not leave their devices. Leave "
                "--features out, or name them."
            )
        if pays:
            raise SettingError(
                f"Expected declared columns for --features choose, found that "
                f"{', '.join(schema.unknown)} would be measured by --rare other. One run pays for "
                "one of them: declare what is known, or leave the mix to the rule."
            )
        require_classes(not schema.label.regression)
        require_weighted(method)

    def text_embeddings(self, schema: Schema) -> Embeddings | None:
        """Return the public vectors of texts; None where texts are words alone."""
        if not schema.texts or self.features is TextFeatures.WORDS:
            return None
        because = self.embeddings_because
        needed = self.embeddings not in (None, "wordllama") or because is not None
        if needed and not (because and because.strip()):
            raise SettingError(
                f"Expected a reason why the vectors of {self.embeddings} are public, found none. "
                "Add --embeddings-because TEXT: it is stated in the result."
            )
        return embeddings(self.embeddings or "wordllama", public_because=because)

    def _require_side(self, schema: Schema, method: Method) -> None:
        informed, side = takes_side_information(method), self.side
        if informed and self.features is TextFeatures.EMBEDDINGS:
            raise SettingError(
                f"Expected words for {method.value}, whose side information is about them, found "
                "--features embeddings. Use --features both, or --method dp-sgd."
            )
        if informed and not schema.texts:
            raise SettingError(
                f"Expected a column of texts for {method.value}, whose side information is about "
                "words, found none. Use --method dp-sgd or dp-adam."
            )
        if informed and side == "none":
            raise SettingError(
                f"Expected side information for {method.value}, found --side none. Leave it "
                "out for public word frequencies, or use --method dp-sgd."
            )
        if self.public is not None and self.features is TextFeatures.EMBEDDINGS:
            raise SettingError(
                "Expected words beside --public, found --features embeddings: private rows that "
                "are among the public ones are recognised, and weighted, by their words. Use "
                "--features both, or leave --public out."
            )
        given = "--public" if self.public is not None else f"--side {side}"
        if not informed and (side not in (None, "none") or self.public is not None):
            raise SettingError(
                f"Expected no side information for {method.value}, found {given}. Use --method "
                "auto, adadps, adadps-two-sided or dp-sgd-weighted on a column of texts."
            )
        if self.public is not None and side is not None:
            raise SettingError(
                f"Expected word frequencies from one place, found --public and --side {side}. "
                "Leave one of them out."
            )
        if self.public is not None and (schema.numeric or schema.categorical):
            raise SettingError(
                "Expected texts alone beside --public, found numbers or categories: private rows "
                "whose text is public are left out of training, whatever else they have. Give "
                "word frequencies by --side FILE instead."
            )
        for name, other in (("the private table", self.data), ("--test", self.test)):
            if self.public is not None and other is not None and _is_same(self.public, other):
                raise SettingError(
                    f"Expected public rows of their own for --public, found {name} again. What is "
                    "fitted to private rows is not public, and a model that has seen held-out rows "
                    "cannot be measured on them. Give another table, or leave --public out."
                )
        if self.public is None and self.public_because is not None:
            raise SettingError(
                "Expected a public table for --public-because, found none. Add --public FILE."
            )

    def _require_ledger(self) -> None:
        if self.ledger is None and self.ledger_budget is not None:
            raise SettingError(
                "Expected a ledger for --ledger-budget, found none. Add --ledger FILE."
            )
        if self.ledger_budget is not None:
            require_epsilon(self.ledger_budget)

    def _require_distinct_folders(self) -> None:
        if not self.out.name:
            raise SettingError(
                f"Expected the name of a new folder for --out, found '{self.out}'. Name one."
            )
        if self.checkpoint is None:
            return
        out, folder = (Path(os.path.abspath(path)) for path in (self.out, self.checkpoint))
        if out == folder or folder in out.parents or out in folder.parents:
            raise SettingError(
                f"Expected different places for --out and --checkpoint, found {self.out} and "
                f"{self.checkpoint}. The model would overwrite the checkpoints."
            )
        if os.path.exists(folder / "result.json"):
            raise SettingError(
                f"Expected a separate folder for --checkpoint, found the model {folder}. Choose "
                "another name."
            )


def merged(file: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a file and options declare together; they may not contradict each other.

    >>> merged({"label": {"column": "stars"}}, {"label": {"classes": ["1", "2"]}})
    {'label': {'column': 'stars', 'classes': ['1', '2']}}
    """
    held: dict[str, Any] = dict(file)
    for name, value in options.items():
        if name not in held:
            held[name] = value
        elif isinstance(value, Mapping) and isinstance(held[name], Mapping):
            held[name] = merged(held[name], value)
        elif held[name] != value:
            raise SettingError(
                f"Expected '{name}' once, found it in the schema and, with another value, among "
                "the options. Leave one of them out."
            )
    return held


def options_as_schema(
    *,
    texts: Sequence[str] = (),
    numeric: Iterable[str] = (),
    categorical: Iterable[str] = (),
    label: str | None = None,
    classes: str | None = None,
    separator: str | None = None,
    regression: bool = False,
    label_bounds: str | None = None,
    missing: str | None = None,
    examples: int | None = None,
) -> dict[str, Any]:
    """Return options as the content of a schema file; options that are not given are left out.

    >>> options_as_schema(numeric=["age=18,100", "visits"])
    {'numeric': {'age': {'low': 18.0, 'high': 100.0}, 'visits': {}}}
    """
    target: dict[str, Any] = {"column": label} if label is not None else {}
    if classes is not None:
        target["classes"] = [name.strip() for name in classes.split(",")]
    if separator is not None:
        target["separator"] = separator
    if regression:
        target["regression"] = True
    if label_bounds is not None:
        target |= _bounds("--label-bounds", label_bounds)
    held: dict[str, Any] = {
        "text": list(texts),
        "numeric": dict(_numeric_option(given) for given in numeric),
        "categorical": dict(_categorical_option(given) for given in categorical),
        "label": target,
        "missing": missing,
        "examples": examples,
    }
    return {name: value for name, value in held.items() if value}


def _numeric_option(given: str) -> tuple[str, dict[str, Any]]:
    name, equals, bounds = given.rpartition("=")
    return (name, _bounds(f"--numeric {given}", bounds)) if equals else (given, {})


def _categorical_option(given: str) -> tuple[str, dict[str, Any]]:
    name, equals, levels = given.partition("=")
    listed = [level.strip() for level in levels.split(",")]
    return (name, {"levels": listed}) if equals else (given, {})


def _bounds(option: str, given: str) -> dict[str, Any]:
    try:
        low, high = (float(part) for part in given.split(","))
    except ValueError:
        raise SettingError(
            f"Expected two numbers low,high, found '{option}'. Write --numeric age=18,100 and "
            "--label-bounds 0,1000."
        ) from None
    return {"low": low, "high": high}


def _is_same(one: Path, other: Path) -> bool:
    """Are these two names of one file? A copy cannot be told without reading private rows."""
    return one.exists() and other.exists() and one.samefile(other)
