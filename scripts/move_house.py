"""Move every file into its room, and rewrite whatever names it: imports, paths, mutations.

    python scripts/move_house.py

Run once, on a clean checkout. It fails, before anything is written, if a mutation's line or guard
is not found exactly once, or if two files would get one name.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRODUCT, EXPERIMENTS = "adadps", "adadps_experiments"
KEPT_AT_ROOT = {"side", "stages", "losses"}  # attributes of the package itself, whatever moves

ROOMS = {
    "files": "writing removing locking data.strict_json",
    "tensors": "row_sparse outer_sum threads kernels known=tensor_cache layout=feature_major",
    "engine": "gradients.waist gradients.objective gradients.choice gradients.chunked "
    "gradients.general gradients.ghost gradients.local gradients.loss losses weights",
    "engine.rules": "gradients.affine gradients.bags gradients.factored gradients.layered "
    "gradients.layers gradients.measures gradients.outer gradients.owned_rows gradients.rounding "
    "gradients.sequence gradients.sparse gradients.structure",
    "engine.passes": "gradients.probing gradients.pure_passes gradients.isolation "
    "gradients.model_state gradients.synthetic gradients.chance gradients.guard",
    "engine.noise": "noise=randomness normals late late_parameter waiting=pending_updates",
    "accounting": "contract sampling=samplers accounting=epsilon delta events renyi "
    "sampled_gaussian planning=plan ledger measured",
    "methods": "methods=paper side stages states=state_codec",
    "report": "result result_soundness card whole_budget",
    "training": "paid_run run stepping payment drawing=batches parts=preflight claims=model_lock "
    "kept checkpoint run_facts public_facts training=fit evaluation progress interruption "
    "debugging tuning federated",
    "estimators.planner": "defaults named_methods typical_texts",
    "cli": "cli=main commands demo",
}
WHOLE = {
    "report": "report.html",
    "estimator": "estimators",
    "table_model": "estimators.tables",
    "doctor": "estimators.doctor",
    "gradients": "engine",
}
TO_EXPERIMENTS = {
    "bench": "bench",
    "reproduce": "reproduce",
    "report.plots": "plots",
    "commands.bench": "commands.bench",
    "commands.reproduce": "commands.reproduce",
    "commands.data": "commands.data",
    **{
        f"data.{name}": f"data.{name}"
        for name in (
            "amazon imdb titles tff_counts tff_stackoverflow technical_words named_sets "
            "original_forms finding fetching downloading digests"
        ).split()
    },
}
NEW_PACKAGES = {
    "tensors": "Tensors that are mostly zero, sums of outer products, compiled loops, threads; no "
    "privacy.",
    "files": "Files: written whole or not at all, removed only if they are ours, strict JSON.",
    "engine": "Per-example gradients, secure noise, and the weights that it is added to.",
    "engine.rules": "How each kind of layer gives norms and clipped sums of per-example gradients.",
    "engine.passes": "What a pass over rows may do, and models tried on synthetic rows.",
    "engine.noise": "Secure noise: drawn at once, or late, when a row is next read.",
    "accounting": "What a run costs, and who has paid: contract, samplers, epsilon, plan, ledger.",
    "methods": "Side information, stages, and the methods that are chains of them.",
    "report": "What a run leaves behind: its result, its card, its page.",
    "training": "Runs: paid for step by step, kept in checkpoints, tuned, and federated.",
    "estimators.planner": "Settings that need no tuning, from public quantities alone.",
    "cli": "The command line: one file a command.",
}
SCRIPTS = (
    "audit_table doctor_table federated_round headline_figure ledger_overhead many_users "
    "profile_step results_tables table_memory tags_figure tune_demo build_technical_words"
).split()
TESTS = {
    "files": "writing",
    "tensors": "compiled_loops row_sparse",
    "data": "assumed_public bounds examples_and_text overlap table_formats tables",
    "engine": "compiled_training late_training late_weights local_training interruptions",
    "accounting": "ledger disk_ledger ledger_files ledger_processes spent_delta",
    "methods": "noise_places noisy_frequencies frequencies_of_texts",
    "report": "cards card_audits card_checking reports report_pages report_in_browser "
    "result_files",
    "training": "bad_input checkpoints ctrl_c kills resuming_attacks resuming_costs "
    "resuming_refusals runs user_level tuning private_score private_selection federated_answers "
    "federated_cohorts federated_dry_runs federated_noise federated_server federated_silence "
    "flower_device flower_dry_runs flower_strategy simulated_users",
    "estimators": "estimator_budget estimator_classifier estimator_conventions "
    "estimator_refusals estimator_regressor defaults typical_texts doctor_simulation "
    "doctor_terms doctor_verdict table_features table_refusals table_schema table_store "
    "table_training table_users",
    "audit": "audit",
    "cli": "card_command command_line federate_command train_command train_refusals "
    "doctor_command",
    "hazards": "hazards hazards_delta hazards_files hazards_held_out hazards_late hazards_levels "
    "hazards_of_batches hazards_of_chance hazards_of_choices hazards_of_model_state hazards_reads "
    "hazards_user_keys user_hazards two_worlds_controls two_worlds_of_commands "
    "two_worlds_of_estimators two_worlds_of_runs recording_data_set mutations",
    "docs": "documentation table_page",
    "fuzz": "unsound_input",
}
EXPERIMENT_TESTS = (
    "absent_data bench bench_promises broken_fetches contenders data_sets default_table "
    "doctor_table experiments federated_experiment fetching fetching_at_once grid_edges "
    "kept_records loaders moments public_reviews public_words published_numbers recipes "
    "reproduce_command results_tables sound_records stackoverflow_corpus text_corpora text_jobs "
    "text_problems text_tables tff_stackoverflow toy_problem trials workers"
).split()
HELPERS = (
    "broken_devices browser engine_checks exact_norms federations flower_grid ground_truth habits "
    "homes killing late_tables leaves ledgers low_bits models mutations problems recording "
    "resuming small_corpora small_originals small_runs surveys tunings two_worlds "
    "two_worlds_problems user_tables"
).split()


def tracked(*patterns: str) -> list[str]:
    """Files that git knows."""
    out = subprocess.check_output(["git", "ls-files", *patterns], cwd=ROOT, text=True)
    return out.split()


def old_modules() -> dict[str, str]:
    """Every old module by its dotted name, and its file."""
    found = {}
    for file in tracked("src/adadps/*.py"):
        name = file.removeprefix("src/").removesuffix(".py").replace("/", ".")
        found[name.removesuffix(".__init__")] = file
    return found


def prefixes() -> dict[str, str]:
    """Old dotted prefixes (without the package) to new dotted names (with it)."""
    table = {name: f"{PRODUCT}.{name}" for name in ("errors", "types", "audit", "data")}
    for room, members in ROOMS.items():
        for member in members.split():
            old, _, name = member.partition("=")
            table[old] = f"{PRODUCT}.{room}.{name or old.rpartition('.')[2]}"
    for old, new in WHOLE.items():
        table.setdefault(old, f"{PRODUCT}.{new}")
    for old, new in TO_EXPERIMENTS.items():
        table[old] = f"{EXPERIMENTS}.{new}"
    return table


PREFIXES = prefixes()
MODULES = old_modules()


def moved(dotted: str) -> str:
    """The new dotted name of ``adadps.x.y.z``: its longest known prefix is replaced."""
    parts = dotted.split(".")[1:]
    for length in range(len(parts), 0, -1):
        known = PREFIXES.get(".".join(parts[:length]))
        if known is not None:
            return ".".join([known, *parts[length:]])
    return dotted


def new_place(file: str) -> str:
    """The new path of a file of the repository."""
    path = Path(file)
    if file.startswith("src/adadps/"):
        return _source_place(file)
    if file.startswith("scripts/") and path.stem in SCRIPTS:
        return f"experiments/{file}"
    if file.startswith("tests/") and file.count("/") == 1 and path.suffix == ".py":
        return _test_place(path)
    return file


def _source_place(file: str) -> str:
    inner = file.removeprefix("src/adadps/")
    if inner in ("__init__.py", "py.typed"):
        return file
    if inner == "data/embedded/technical_words.csv.xz":
        return f"experiments/src/{EXPERIMENTS}/data/embedded/technical_words.csv.xz"
    if inner == "reproduce/recorded/demo.json":
        return "src/adadps/cli/demo/recorded.json"
    stem, suffix = inner.split(".", 1)
    parts = stem.split("/")
    is_package = parts[-1] == "__init__"
    dotted = ".".join(["adadps", *(parts[:-1] if is_package else parts)])
    if suffix != "py":  # data files lie beside the package that reads them
        dotted = ".".join(["adadps", *parts[:-1]])
        return f"{_folder(moved(dotted))}/{parts[-1]}.{suffix}"
    target = moved(dotted)
    return f"{_folder(target)}/__init__.py" if is_package else f"{_folder(target)}.py"


def _folder(dotted: str) -> str:
    base = "experiments/src" if dotted.split(".")[0] == EXPERIMENTS else "src"
    return f"{base}/{dotted.replace('.', '/')}"


def _test_place(path: Path) -> str:
    if path.stem in HELPERS:
        return f"tests/support/{path.name}"
    if path.stem == "conftest":
        return str(path)
    name = path.stem.removeprefix("test_")
    if name in EXPERIMENT_TESTS:
        return f"experiments/tests/{path.name}"
    for room, names in TESTS.items():
        if name in names.split():
            return f"tests/{room}/{path.name}"
    raise SystemExit(f"No room for {path}")


def rewrite_imports(text: str, *, inside: bool) -> str:
    """``from adadps... import ...`` statements of Python source, one after the other."""
    lines = text.splitlines(keepends=True)
    tree = ast.parse(text)
    nodes = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "adadps"
    ]
    for node in sorted(nodes, key=lambda one: -one.lineno):
        assert node.end_lineno is not None
        indent = " " * node.col_offset
        made = "".join(f"{indent}{line}\n" for line in _imports(node, inside=inside))
        lines[node.lineno - 1 : node.end_lineno] = [made]
    return "".join(lines)


def _imports(node: ast.ImportFrom, *, inside: bool) -> list[str]:
    module = node.module or ""
    home: dict[str, list[str]] = {}
    for alias in node.names:
        dotted = f"{module}.{alias.name}"
        is_module = dotted in MODULES and _is_submodule(module, alias.name)
        keep = module == "adadps" and alias.name in KEPT_AT_ROOT and not inside
        if is_module and not keep:
            package, _, name = moved(dotted).rpartition(".")
            shown = alias.asname or alias.name
            home.setdefault(package, []).append(name if name == shown else f"{name} as {shown}")
        else:
            target = module if module == "adadps" else moved(module)
            home.setdefault(target, []).append(
                alias.name + (f" as {alias.asname}" if alias.asname else "")
            )
    return [f"from {package} import {', '.join(names)}" for package, names in home.items()]


def _is_submodule(package: str, name: str) -> bool:
    """Not so where the package exports a function of the same name, and moves as a whole."""
    return package not in ("adadps.stages", "adadps.side", "adadps.tuning", "adadps.federated")


DOTTED = re.compile(r"(?<![\w./-])adadps(?:\.[a-z_]\w*)+")
IN_PATH = re.compile(r"(?<![\w-])(?:src/)?adadps/[\w/]+(?:\.\w+)+")
TEST_PATH = re.compile(r"(?<![\w])tests/test_\w+\.py")
SCRIPT_PATH = re.compile(r"(?<![\w/])scripts/\w+\.py")


def rewrite_names(text: str, *, python: bool) -> str:
    """Dotted names and paths in strings, comments, pages and settings."""

    def dotted(match: re.Match[str]) -> str:
        name, before = match[0], text[: match.start()]
        line = before.rpartition("\n")[2].lstrip()
        if line.startswith("from adadps") or (python and line.startswith("from ")):
            return name  # statements were rewritten by their own rule
        first = name.split(".")[1]
        is_statement = line.startswith(("from ", "import ", ">>> from", ":::"))
        if first in KEPT_AT_ROOT and not is_statement:
            return name
        if not is_statement and f"adadps.{first}" not in MODULES:
            return name
        return moved(name)

    def path(match: re.Match[str]) -> str:
        found = match[0]
        file = found if found.startswith("src/") else f"src/{found}"
        if file not in SOURCES:
            return found
        place = new_place(file)
        return place if found.startswith("src/") else place.partition("src/")[2]

    text = DOTTED.sub(dotted, text)
    text = IN_PATH.sub(path, text)
    text = TEST_PATH.sub(lambda match: PLACES.get(match[0], match[0]), text)
    return SCRIPT_PATH.sub(lambda match: PLACES.get(match[0], match[0]), text)


def rewrite_helpers(text: str) -> str:
    """Helpers of the tests are imported from ``support``."""
    names = "|".join(HELPERS)
    text = re.sub(rf"(?m)^(\s*)from ({names}) import", r"\1from support.\2 import", text)
    return re.sub(
        rf"(?m)^(\s*)import ({names})$", r"\1from support import \2", text
    )


def rewrite_mutations(text: str) -> str:
    """Mutations name a file of the package: now by its path in the repository."""
    count = 0

    def file(match: re.Match[str]) -> str:
        nonlocal count
        count += 1
        return f'{match[1]}"{PLACES["src/adadps/" + match[2]]}"'

    text = re.sub(r'(Mutation\(\s*)"([\w/]+\.py)"', file, text)
    expected = text.count("Mutation(")
    if count != expected:
        raise SystemExit(f"Expected {expected} mutations with a file, found {count}.")
    return text


def deeper(text: str, old: str, new: str) -> str:
    """``Path(__file__).parents[n]`` in a file that lies deeper now."""
    difference = new.count("/") - old.count("/")
    return re.sub(
        r"(Path\(__file__\)(?:\.resolve\(\))?\.parents)\[(\d)\]",
        lambda match: f"{match[1]}[{int(match[2]) + difference}]",
        text,
    )


def require_mutations() -> None:
    """Each mutation's line stands once in its file, and each guard in its test."""
    sys.path.insert(0, str(ROOT / "tests"))
    from support.mutations import MUTATIONS  # type: ignore[import-not-found]

    wrong = []
    for name, mutation in MUTATIONS.items():
        source = (ROOT / mutation.file).read_text(encoding="utf-8")
        guard = ROOT / mutation.guard.split(" -k ")[0]
        if source.count(mutation.before) != 1 or not guard.exists():
            wrong.append(f"{name}: {mutation.file} / {mutation.guard}")
    if wrong:
        raise SystemExit("Mutations without a match:\n" + "\n".join(wrong))
    print(f"{len(MUTATIONS)} mutations match.")


SOURCES = set(tracked("src/adadps"))
PLACES = {file: new_place(file) for file in tracked()}


def main() -> None:
    """Move, rewrite, check."""
    if len(set(PLACES.values())) != len(PLACES):
        raise SystemExit("Two files would get one name.")
    changed: dict[str, tuple[str, str | bytes]] = {}
    skip = ("CHANGELOG.md", "scripts/move_house.py")
    for old, new in PLACES.items():
        raw = (ROOT / old).read_bytes()
        is_text = old.endswith((".py", ".md", ".toml", ".yml", ".yaml", "NOTICE", "Makefile", "run"))
        if not is_text or old in skip or old.startswith("docs/results/") and old.endswith("json"):
            changed[old] = (new, raw)
            continue
        text = raw.decode()
        if old.endswith(".py"):
            text = rewrite_imports(text, inside=old.startswith("src/"))
            if old.startswith("tests/"):
                text = rewrite_helpers(text)
        text = rewrite_names(text, python=old.endswith(".py"))
        if old == "tests/mutations.py":
            text = rewrite_mutations(text)
        changed[old] = (new, deeper(text, old, new))
    for old, (new, content) in changed.items():
        target = ROOT / new
        if new != old:
            target.parent.mkdir(parents=True, exist_ok=True)
            subprocess.check_call(["git", "mv", old, new], cwd=ROOT)
        data = content if isinstance(content, bytes) else content.encode()
        target.write_bytes(data)
    for package, words in NEW_PACKAGES.items():
        file = ROOT / f"src/adadps/{package.replace('.', '/')}/__init__.py"
        if not file.exists() or package in ("engine",):
            file.write_text(f'"""{words}"""\n', encoding="utf-8")
    for package, words in (
        ("", "Experiments around adadps: the paper's tables, benchmarks, named data sets."),
        ("data", "Data sets that are known by name."),
        ("commands", "The commands `reproduce`, `bench` and `data`."),
    ):
        file = ROOT / f"experiments/src/{EXPERIMENTS}" / package / "__init__.py"
        if not file.exists():
            file.write_text(f'"""{words}"""\n', encoding="utf-8")
    (ROOT / f"experiments/src/{EXPERIMENTS}/py.typed").touch()
    require_mutations()


if __name__ == "__main__":
    main()
