"""Make docs/results/defaults/paid-choice.json: the mix of features by rule against a paid choice.

    python experiments/scripts/paid_choice_table.py               # make the runs that are missing
    python experiments/scripts/paid_choice_table.py --markdown    # print the table

For each problem and ε, on training rows of which a fifth is held out: one run by the rule with all
of ε; short trials of every candidate, as `--features choose` makes them; and one run for every
candidate with the budget that the choice leaves. What a paid choice would have got follows from
these, for two families of candidates and two margins. The family and the margin are chosen for each
problem on the other problems alone. One run each: differences below half a point say nothing.
"""

import argparse
import json
import math
from functools import partial
from pathlib import Path

import torch

from adadps.accounting.epsilon import Budget
from adadps.accounting.events import default_delta
from adadps.data.sparse_rows import sparse_linear
from adadps.engine.noise.randomness import secure
from adadps.estimators.paid_mix import CandidateMix, MixTrials, candidates, is_right, price_of_mix
from adadps.estimators.planner.plan import LossFacts, first_gradient, plan_training
from adadps.estimators.tables.features import prepare_for_rows, text_features
from adadps.estimators.text import directions_of
from adadps.methods.side import embeddings
from adadps.training.evaluation import on_held_out
from adadps.training.fit import fit
from adadps.types import Accountant, Method
from adadps_experiments.reproduce.defaults.problems import load_problem

JSON = Path(__file__).parents[2] / "docs" / "results" / "defaults" / "paid-choice.json"
PROBLEMS = ("amazon", "debian-sections", "so-titles", "imdb")
EPSILONS = (1.0, 3.0)
SHARES, CONSTANTS = "shares", "constants of the rule"
FAMILIES, MARGINS = (SHARES, CONSTANTS), (0.0, 2.0)
"""Margins count standard deviations of the noise of a difference between two counts."""


def families(price, outputs: int, epsilon: float) -> dict[str, list[CandidateMix]]:
    """Return the candidates: other shares, or shares by other constants of the rule."""
    constants = candidates(price, outputs, epsilon)
    rule = next(mix.share for mix in constants if mix.by_rule)
    other = CandidateMix(0.5, 0.5) if rule < 0.2 else CandidateMix(0.05, 0.05)
    fixed = [CandidateMix(rule, rule, by_rule=True), other, CandidateMix(0.95, 0.95)]
    return {SHARES: fixed, CONSTANTS: list(constants)}


def cell(name: str, epsilon: float) -> dict:
    """Make all runs of one problem at one ε."""
    problem = load_problem(name).for_tuning()
    train, test = problem.mixed(problem.train), problem.mixed(problem.test)
    outputs, budget = len(problem.classes), Budget(epsilon, default_delta(len(train)))
    prepare = partial(
        prepare_for_rows, Method.DP_SGD_WEIGHTED, text_features(problem.words, embeddings()),
        problem.frequencies(),
    )  # fmt: skip
    loss = LossFacts(first_gradient(outputs), outputs=outputs)
    planned = partial(plan_training, prepare, examples=len(train), budget=budget, loss=loss)

    def layer(_=None) -> torch.nn.Linear:
        model = sparse_linear(train.features.width, outputs, bias=False)
        torch.nn.init.zeros_(model.weight)
        start = torch.from_numpy(directions_of(problem.classes, embeddings()))
        with torch.no_grad():
            model.weight[:, len(problem.words) :] = start
        return model

    def accuracy(plan) -> float:
        chosen, shown = plan.settings, on_held_out(
            "held-out rows", test.features, test.targets, accuracy=problem.metric
        )  # fmt: skip
        result = fit(
            layer(), problem.loss, train, method=plan.chain, sampler=chosen.sampler,
            steps=chosen.steps, delta=budget.delta, accountant=Accountant.PLD,
            evaluate=[shown], progress=False,
        )  # fmt: skip
        return round(result.last("accuracy"), 4)

    price = price_of_mix(len(train), budget, Accountant.PLD)
    plan = planned(besides=price.events)
    trials = MixTrials(plan, prepare, (), layer, problem.loss, train)
    found = {}
    for family, mixes in families(price, outputs, epsilon).items():
        found[family] = [tried(trials, mix, price, train, test) for mix in mixes]
    finals = {}
    for mix in (mix for lines in found.values() for mix in lines):
        share = f"{mix['share']:.4f}"
        if share not in finals:
            finals[share] = accuracy(trials.chosen(CandidateMix(mix["share"], 0.0)))
        mix["accuracy"] = finals[share]
    return {
        "problem": name,
        "epsilon": epsilon,
        "examples": len(train),
        "outputs": outputs,
        "rule": accuracy(planned()),
        "deviation of a difference": round(math.sqrt(2) * price.deviation, 2),
        "candidates": found,
    }


def tried(trials: MixTrials, mix: CandidateMix, price, train, test) -> dict:
    """Return a candidate's trial: its noisy count, and, as these sets are public, what it is of."""
    weights = trials._tried(mix, price)
    right = is_right(train.features.times(weights.T.contiguous()), train.targets).double()
    of_test = is_right(test.features.times(weights.T.contiguous()), test.targets).double()
    noisy = secure().release(right.sum().reshape(1), standard_deviation=price.deviation)
    return {
        "share": mix.share,
        "by_rule": mix.by_rule,
        "share on trial": mix.on_trial,
        "noisy count": round(float(noisy), 1),
        "right of trained rows": round(float(right.mean()), 4),
        "right of held-out rows": round(float(of_test.mean()), 4),
    }


def paid(held: dict, family: str, margin: float) -> float:
    """Return the accuracy that a paid choice has got."""
    mixes = held["candidates"][family]
    rule = next(mix for mix in mixes if mix["by_rule"])
    best = max(mixes, key=lambda mix: mix["noisy count"])
    lead = best["noisy count"] - rule["noisy count"]
    ahead = lead > margin * held["deviation of a difference"]
    return best["accuracy"] if ahead else rule["accuracy"]


def table(held: list[dict]) -> str:
    """Return the table in Markdown; the kind of choice is that of the other problems."""
    kinds = [(family, margin) for family in FAMILIES for margin in MARGINS]
    lines = [
        "| problem | ε | rule | paid choice | perfect choice at the same price | kind |",
        "|---|---|---|---|---|---|",
    ]
    for one in held:
        others = [other for other in held if other["problem"] != one["problem"]]
        family, margin = max(kinds, key=lambda kind: sum(paid(other, *kind) for other in others))
        perfect = max(mix["accuracy"] for mix in one["candidates"][family])
        lines.append(
            f"| {one['problem']} | {one['epsilon']:g} | {one['rule']:.3f} | "
            f"{paid(one, family, margin):.3f} | {perfect:.3f} | {family}, {margin:g} |"
        )
    for family, margin in kinds:
        mean = sum(paid(one, family, margin) - one["rule"] for one in held) / len(held)
        lines.append(f"\n{family}, margin {margin:g}: {100 * mean:+.2f} points on average")
    return "\n".join(lines)


def main() -> None:
    """Make missing runs, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--markdown", action="store_true")
    held = json.loads(JSON.read_text(encoding="utf-8")) if JSON.exists() else []
    if parser.parse_args().markdown:
        print(table(held))
        return
    for name in PROBLEMS:
        for epsilon in EPSILONS:
            if not any((one["problem"], one["epsilon"]) == (name, epsilon) for one in held):
                held.append(cell(name, epsilon))
                JSON.write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
