"""Lines of the code whose loss would cost privacy, and the tests that guard each."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    file: str
    before: str
    after: str
    guard: str


MUTATIONS = {
    "the clip is removed": Mutation(
        "src/adadps/engine/waist.py",
        "torch.where(small, 1.0, torch.nan_to_num(clip_norm / norms, nan=0.0))",
        "torch.ones_like(norms)",
        "tests/property/test_identities.py -k at_most_c",
    ),
    "the noise is removed": Mutation(
        "src/adadps/engine/noise/randomness.py",
        "change = np.rint((total[i] + deviation * z[i]) * inverse) * back",
        "change = np.rint((total[i] + 0.0 * z[i]) * inverse) * back",
        "tests/hazards/test_hazards.py -k hazard_13",
    ),
    "the noise is halved": Mutation(
        "src/adadps/engine/noise/randomness.py",
        "change = np.rint((total[i] + deviation * z[i]) * inverse) * back",
        "change = np.rint((total[i] + deviation / 2 * z[i]) * inverse) * back",
        "tests/hazards/test_hazards.py -k hazard_13",
    ),
    "the scale is removed": Mutation(
        "src/adadps/methods/stages/gradients.py",
        "return signal.scale(transform.stable_scale()), following",
        "return signal, following",
        "tests/property/test_identities.py -k third_door_or_swapping_or_public_statistics",
    ),
    "the factor 2 of labelled groups is removed": Mutation(
        "src/adadps/accounting/contract.py",
        "(Sampling.POISSON, _ADD, Grouping.LABELLED): {_PLD: 2, _RDP: 2}",
        "(Sampling.POISSON, _ADD, Grouping.LABELLED): {_PLD: 1, _RDP: 1}",
        "tests/hazards/test_hazards.py -k hazard_03",
    ),
    "users are clipped row by row": Mutation(
        "src/adadps/methods/stages/users.py",
        "return chosen, Units(torch.from_numpy(owners), len(drawn), None)",
        "return chosen, None",
        "tests/hazards/test_user_hazards.py -k dominate",
    ),
    "a user brings all rows": Mutation(
        "src/adadps/data/users.py",
        "if len(rows) <= most:",
        "if True:",
        "tests/hazards/test_user_hazards.py -k never_fall",
    ),
    "the first rows of a user are brought every time": Mutation(
        "src/adadps/data/users.py",
        "rows[np.sort(rng.choice(len(rows), most, replace=False, shuffle=False))]",
        "rows[:most]",
        "tests/statistical/test_user_draws.py -k equally",
    ),
    "examples are drawn where users are clipped": Mutation(
        "src/adadps/accounting/contract.py",
        "if unit is Unit.EXAMPLE and grouping.by_user:",
        "if False:",
        "tests/hazards/test_user_hazards.py -k drawing_examples",
    ),
    "users are drawn where examples are clipped": Mutation(
        "src/adadps/accounting/contract.py",
        "if unit is Unit.USER and not grouping.by_user:",
        "if False:",
        "tests/hazards/test_user_hazards.py -k drawing_examples",
    ),
    "counts of rows are charged as counts of users": Mutation(
        "src/adadps/training/calibration.py",
        "count = len(torch.unique(data.users))",
        "count = len(data)",
        "tests/hazards/test_user_hazards.py -k counts_of_rows",
    ),
    "a ledger adds up users and examples": Mutation(
        "src/adadps/accounting/ledger/spending.py",
        "if self != found:",
        "if self != Terms(found.relation, found.accountant, self.unit):",
        "tests/training/test_user_level.py -k serves_one_unit",
    ),
    "the factor 2 of fixed-size batches is removed": Mutation(
        "src/adadps/accounting/contract.py",
        "(Sampling.FIXED, _REPLACE, Grouping.NONE): {_RDP: 2}",
        "(Sampling.FIXED, _REPLACE, Grouping.NONE): {_RDP: 1}",
        "tests/contract/test_contract_table.py",
    ),
    "the normaliser follows the data": Mutation(
        "src/adadps/training/stepper.py",
        "expected_size=self._expected_size,\n            noise=",
        "expected_size=float(len(self._data)),\n            noise=",
        "tests/hazards/test_hazards.py -k hazard_04",
    ),
    "steps are not charged": Mutation(
        "src/adadps/training/run.py",
        "                self._pay()\n",
        "",
        "tests/hazards/test_hazards.py -k hazard_09",
    ),
    "what earlier lives paid for is forgotten": Mutation(
        "src/adadps/accounting/ledger/disk.py",
        '"WHERE run IN (SELECT id FROM runs WHERE name = ?) GROUP BY event ORDER BY min(id)"',
        '"WHERE run = (SELECT max(id) FROM runs WHERE name = ?) GROUP BY event ORDER BY min(id)"',
        "tests/training/test_resuming_costs.py -k hazard_16",
    ),
    "a resumed run forgets that steps were lost": Mutation(
        "src/adadps/training/payment.py",
        "        if not self._has_lost or not left:\n            return planned\n",
        "        return planned\n",
        "tests/training/test_resuming_costs.py -k hazard_16",
    ),
    "steps that are reserved together are charged as one": Mutation(
        "src/adadps/accounting/ledger/disk.py",
        "[(self._lives[payer], number)] * count,",
        "[(self._lives[payer], number)],",
        "tests/accounting/test_disk_ledger_entries.py -k at_once",
    ),
    "a life that was not private is forgotten": Mutation(
        "src/adadps/training/payment.py",
        "return any(exposes(event) for event, _ in self._earlier)",
        "return False",
        "tests/training/test_resuming_attacks.py -k hazard_24",
    ),
    "any ledger will do for a run that goes on": Mutation(
        "src/adadps/training/checkpoint.py",
        "if self.ledger != ledger:",
        "if False:",
        "tests/training/test_resuming_attacks.py -k hazard_16_before",
    ),
    "an old copy of the ledger will do": Mutation(
        "src/adadps/training/checkpoint.py",
        "if paid < self.paid:",
        "if False:",
        "tests/training/test_resuming_refusals.py -k old_copy",
    ),
    "a run goes on after a step that failed": Mutation(
        "src/adadps/training/run.py",
        "            self._is_broken = True\n",
        "            pass\n",
        "tests/training/test_resuming_attacks.py -k hazard_16",
    ),
    "large weights wait for their noise": Mutation(
        "src/adadps/engine/noise/late.py",
        "return is_small and width >= torch.finfo(kind).tiny",
        "return True",
        "tests/engine/test_late_training.py -k hazard_18",
    ),
    "an empty batch is not noised": Mutation(
        "src/adadps/methods/stages/gradients.py",
        "step)) or zeros_like(state)\n",
        "step))\n        if total is None:\n            return {}, state\n",
        "tests/hazards/test_hazards.py -k hazard_08",
    ),
    "a poisoned example is added up": Mutation(
        "src/adadps/engine/ghost.py",
        "if not bool(finite.all()):",
        "if False:",
        "tests/hazards/test_hazards.py -k hazard_06",
    ),
    "the grid is removed": Mutation(
        "src/adadps/engine/noise/randomness.py",
        "out[i] = np.rint((total[i] + deviation * z[i]) * inverse) * back",
        "out[i] = (total[i] + deviation * z[i]) * factor",
        "tests/statistical/test_released_noise.py -k hazard_18",
    ),
    "an audit forgets δ": Mutation(
        "src/adadps/audit/repeated_bound.py",
        "likely = at_least(*hits, error) - delta",
        "likely = at_least(*hits, error)",
        "tests/statistical/test_audit_bounds.py -k never_overlap",
    ),
    "an audit of one run forgets half of δ": Mutation(
        "src/adadps/audit/one_run_bound.py",
        "2 * canaries * delta * slope",
        "canaries * delta * slope",
        "tests/statistical/test_audit_bounds.py -k by_hand",
    ),
    "an audit looks at the runs that it was chosen by": Mutation(
        "src/adadps/audit/repeated_bound.py",
        "counted = count(guess, *second)",
        "counted = count(guess, *first)",
        "tests/statistical/test_audit_bounds.py -k nothing_leaks",
    ),
    "late noise is halved": Mutation(
        "src/adadps/tensors/kernels.py",
        "(keep * change + deviation * normal)",
        "(keep * change + deviation / 2 * normal)",
        "tests/statistical/test_late_noise.py -k same_law",
    ),
    "late noise is off the grid": Mutation(
        "src/adadps/tensors/kernels.py",
        "(cell + np.rint(moved * inverse)) * width",
        "cell * width + moved",
        "tests/engine/test_late_weights.py -k grid",
    ),
    "the rounding of a late table is taken for its weights": Mutation(
        "src/adadps/tensors/kernels.py",
        "low[j] = value - np.float64(rounded)",
        "low[j] = 0.0",
        "tests/statistical/test_late_large_weights.py -k same_law",
    ),
    "whether a table waits is decided by weights that were read": Mutation(
        "src/adadps/engine/noise/late.py",
        "        self.settle()\n        low, high =",
        "        low, high =",
        "tests/hazards/test_hazards_late.py -k hazard_37",
    ),
    "a row that waits gathers the noise of one step only": Mutation(
        "src/adadps/engine/noise/late.py",
        "variance[before] += deviation**2",
        "variance[self.now : self.now + 1] += deviation**2",
        "tests/statistical/test_late_noise.py -k same_law",
    ),
    "a parameter is read without its noise": Mutation(
        "src/adadps/engine/noise/late.py",
        "                    published.enter_context(_published(parameter))\n",
        "                    pass\n",
        "tests/statistical/test_late_reads.py -k every_read",
    ),
    "a ledger is removed like any other file": Mutation(
        "src/adadps/files.py",
        "    if not is_ledger(path):\n        path.unlink",
        "    if True:\n        path.unlink",
        "tests/hazards/test_hazards_files.py -k checkpoints_leave_a_ledger",
    ),
    "a ledger is replaced by --force": Mutation(
        "src/adadps/files.py",
        "    require_no_ledger(target)\n    os.replace",
        "    os.replace",
        "tests/hazards/test_hazards_files.py -k force_does_not",
    ),
    "drafts of living processes are removed": Mutation(
        "src/adadps/files.py",
        "                    if surely_locked(descriptor):\n                        for",
        "                    if True:\n                        for",
        "tests/hazards/test_hazards_files.py -k of_the_living",
    ),
    "any delta will do": Mutation(
        "src/adadps/accounting/events.py",
        "        delta * units <= _ROUNDING,\n",
        "        True,\n",
        "tests/hazards/test_hazards_delta.py -k no_epsilon_is_computed",
    ),
    "nobody is warned of a large delta": Mutation(
        "src/adadps/accounting/events.py",
        "warn and delta * units > _ROUNDING / 2",
        "warn and delta * units > _ROUNDING",
        "tests/hazards/test_hazards_delta.py -k near_one_in_n",
    ),
    "spellings of one user are users": Mutation(
        "src/adadps/data/users.py",
        "keys = [user_key(user) for user in held]",
        "keys = [str(user) for user in held]",
        "tests/hazards/test_hazards_user_keys.py -k spellings_of_one",
    ),
    "spellings of one user in a table are users": Mutation(
        "src/adadps/estimators/tables/survey.py",
        "key = user_key(cell)",
        "key = cell.strip()",
        "tests/hazards/test_hazards_user_keys.py -k four_spellings",
    ),
    "the model's memory moves with the run": Mutation(
        "src/adadps/engine/noise/late.py",
        "self.table = parameter.data.clone()",
        "self.table = parameter.data",
        "tests/hazards/test_hazards_reads.py -k a_view_does_not_tell",
    ),
    "weights are not hidden after a step": Mutation(
        "src/adadps/engine/noise/late.py",
        "self._parameter.data = self._nothing",
        "pass",
        "tests/hazards/test_hazards_reads.py -k sees_nothing",
    ),
    "run.params move row by row": Mutation(
        "src/adadps/training/stepper.py",
        "return self.weights.published()",
        "return self.weights.read()",
        "tests/hazards/test_hazards_reads.py -k a_view_does_not_tell",
    ),
    "a forked child noises again": Mutation(
        "src/adadps/engine/noise/late.py",
        "        self._require_own_process()\n",
        "",
        "tests/engine/test_late_weights.py -k forked",
    ),
    "noise of a dense layer with a full D is removed": Mutation(
        "src/adadps/engine/noise/randomness.py",
        "change = np.rint((total[i] * full[i] + deviation * z[i]) * inverse) * back",
        "change = np.rint((total[i] * full[i] + 0.0 * z[i]) * inverse) * back",
        "tests/engine/test_compiled_training.py -k noise",
    ),
    "a change waits for its noise without D": Mutation(
        "src/adadps/tensors/kernels.py",
        "values[j] *= diagonal[j]",
        "values[j] *= 1.0",
        "tests/engine/test_compiled_training.py -k waits",
    ),
    "what waits is scaled by a later D": Mutation(
        "src/adadps/engine/noise/late.py",
        "other or self._bytes > self._allowed",
        "self._bytes > self._allowed",
        "tests/engine/test_compiled_training.py -k waits",
    ),
    "a bag reads words that do not exist": Mutation(
        "src/adadps/engine/rules/sparse.py",
        "    require_within(tokens, layer.num_embeddings)\n",
        "",
        "tests/tensors/test_compiled_loops.py -k outside",
    ),
    "rounding lets a sparse norm be too small": Mutation(
        "src/adadps/tensors/kernels.py",
        "raised = total * (1 + rounding * (words + width + 16))",
        "raised = total * (1 - 1e-9)",
        "tests/contract/test_engine_rounding.py",
    ),
    "rounding lets a norm be too small": Mutation(
        "src/adadps/engine/rules/outer.py",
        "return (relative * (1 + rounding) + TINY * terms) * size.square()",
        "return (relative * (1 - rounding) - TINY * terms) * size.square()",
        "tests/contract/test_engine_rounding.py",
    ),
    "a norm that is no number is not clipped": Mutation(
        "src/adadps/engine/waist.py",
        "small = norms <= clip_norm",
        "small = ~(norms > clip_norm)",
        "tests/hazards/test_hazards.py -k hazard_06",
    ),
    "public rows are trained on as private ones": Mutation(
        "src/adadps/training/stepper.py",
        "kept = self._is_private[rows]",
        "kept = self._is_private[rows] | True",
        "tests/hazards/test_hazards.py -k hazard_20",
    ),
    "public texts are trained on as private ones": Mutation(
        "src/adadps/data/examples.py",
        "private &= ~torch.from_numpy(data.texts.within(texts))",
        "pass",
        "tests/data/test_overlap.py -k hazard_20",
    ),
    "rows that are scaled are not found in the corpus any more": Mutation(
        "src/adadps/data/examples.py",
        "hashes = identities_of_rows(data.features) if data.before is None else data.before",
        "hashes = identities_of_rows(data.features)",
        "tests/estimators/test_estimator_classifier.py -k corpus_behind_side",
    ),
    "held-out rows that were trained on are left out": Mutation(
        "src/adadps/estimators/tables/training.py",
        "        test = _stored(request, request.test, model, stores, named=False)\n",
        "        test = _stored(request, request.test, model, stores, named=False)\n"
        "        import torch\n"
        "        from adadps.estimators.tables.overlap import row_identities as of_rows\n"
        "        from adadps.estimators.tables.overlap import shared_columns\n"
        "        both = (request.test, request.data)\n"
        "        held, known = (of_rows(path, (), shared_columns(*both)) for path in both)\n"
        "        test = test.take(torch.from_numpy(~held.within([known])).nonzero().flatten())\n",
        "tests/hazards/test_hazards_held_out.py -k the_baseline",
    ),
    "held-out rows that were trained on are refused": Mutation(
        "src/adadps/estimators/tables/training.py",
        "        test = _stored(request, request.test, model, stores, named=False)\n",
        "        test = _stored(request, request.test, model, stores, named=False)\n"
        "        from adadps.estimators.tables.overlap import overlap_in_words\n"
        "        if not overlap_in_words(request).startswith('0 of'):\n"
        "            raise SettingError('Expected other rows.')\n",
        "tests/hazards/test_hazards_held_out.py -k no_exit_code",
    ),
    "numbers on held-out records pass as covered": Mutation(
        "src/adadps/report/card/meaning.py",
        'return [HELD_OUT_RECORDS] if "held out" in declared else []',
        "return []",
        "tests/hazards/test_hazards_held_out.py -k card_report_and_console",
    ),
    "an estimator tries its module after it has paid": Mutation(
        "src/adadps/estimators/base.py",
        "objective(model, task.loss, no_examples_like(X, task.targets, task.scaling))",
        "pass",
        "tests/hazards/test_hazards_levels.py -k tried_before",
    ),
    "what was fitted before an estimator is not told": Mutation(
        "src/adadps/estimators/base.py",
        "*task.facts, made)",
        "*task.facts)",
        "tests/hazards/test_hazards_held_out.py -k under_strict_too",
    ),
    "documents are counted without a clip": Mutation(
        "src/adadps/methods/side/noisy.py",
        "return (clip_norm / (norms * (1 + ROUNDING))).clamp_max(1.0)",
        "return torch.ones_like(norms)",
        "tests/methods/test_noisy_frequencies.py -k at_most_c",
    ),
    "counts get less noise than is charged": Mutation(
        "src/adadps/methods/side/noisy.py",
        "deviation = self.noise_multiplier * self.clip_norm",
        "deviation = self.noise_multiplier",
        "tests/methods/test_noisy_frequencies.py -k hazard_13",
    ),
    "counts are noised again and again": Mutation(
        "src/adadps/methods/side/noisy.py",
        "                self._counts = None\n",
        "",
        "tests/methods/test_noisy_frequencies.py -k drawn_once",
    ),
    "a measured sum forgets that replacing one moves it by 2C": Mutation(
        "src/adadps/accounting/contract.py",
        "    _REPLACE: {_PLD: 1, _RDP: 2},\n",
        "    _REPLACE: {_PLD: 1, _RDP: 1},\n",
        "tests/methods/test_noisy_frequencies.py -k hazard_20_the_price",
    ),
    "side information is drawn before the plan is checked": Mutation(
        "src/adadps/training/run.py",
        "        if must_fit:\n            self._require_room()\n",
        "",
        "tests/methods/test_noisy_frequencies.py -k too_small",
    ),
    "tiny divergences are left to rounding": Mutation(
        "src/adadps/accounting/renyi.py",
        "    accounted[tiny] = np.fmax(accounted[tiny], exact)\n",
        "",
        "tests/property/test_accounting_properties.py -k however_small_or_larger_batches",
    ),
    "a debugged run is charged as private": Mutation(
        "src/adadps/training/run.py",
        "        reasons += [DEBUG_MARK] if self.debug else []\n",
        "",
        "tests/hazards/test_hazards.py -k hazard_22",
    ),
    "an exposed chain prints an epsilon": Mutation(
        "src/adadps/training/run.py",
        "epsilon=self.epsilon(),",
        "epsilon=1.0,",
        "tests/hazards/test_hazards.py -k hazard_24",
    ),
    "a tuning states the price of its best trial alone": Mutation(
        "src/adadps/training/tuning/search.py",
        "epsilon=math.inf if reasons else total,",
        "epsilon=own.epsilon,",
        "tests/training/test_tuning.py -k total_or_by_rdp",
    ),
    "private selection is not paid for": Mutation(
        "src/adadps/training/tuning/search.py",
        "    ledger.authorise(charge, run=plan.name)\n",
        "",
        "tests/training/test_private_selection.py -k paid_before",
    ),
    "private selection leaves the number of trials in torch's generator": Mutation(
        "src/adadps/training/tuning/search.py",
        "with torch.random.fork_rng(devices=[]):  # its state",
        "if True:  # its state",
        "tests/training/test_private_selection.py -k depends_on_the_number",
    ),
    "the best model tells which trial it came from": Mutation(
        "src/adadps/training/tuning/search.py",
        "torch.manual_seed(int(rng.integers(2**63)))",
        "rng.integers(2**63)",
        "tests/training/test_private_selection.py -k first_weights",
    ),
    "private selection charges the cheapest setting": Mutation(
        "src/adadps/training/tuning/selection.py",
        "np.max(curves, axis=0)",
        "np.min(curves, axis=0)",
        "tests/training/test_private_selection.py -k less_noise",
    ),
    "a private score is not noised": Mutation(
        "src/adadps/training/tuning/score.py",
        "return float(released) / self.declared_examples",
        "return float(count) / self.declared_examples",
        "tests/training/test_tuning.py -k noised",
    ),
    "a device sends its update without noise": Mutation(
        "src/adadps/training/federated/client.py",
        "randomness.release(dense(total), standard_deviation=deviation)",
        "randomness.release(dense(total), standard_deviation=1e-6 * deviation)",
        "tests/training/test_federated_noise.py -k hazard_15",
    ),
    "a device does not clip before its noise": Mutation(
        "src/adadps/training/federated/client.py",
        "clip_weights(found.norms(), task.clip_norm)",
        "torch.ones_like(found.norms())",
        "tests/training/test_federated_noise.py -k clips_before_its_noise",
    ),
    "a device with useless rows is silent": Mutation(
        "src/adadps/training/federated/flower_device.py",
        "            raise  # to a sum that the server noises, no answer and zero are the same",
        "            pass\n        raise",
        "tests/training/test_flower_device.py -k whatever_its_rows",
    ),
    "a round is paid before devices have tried the task": Mutation(
        "src/adadps/training/federated/flower.py",
        "nodes = self._ready(grid, config)\n        self._has_paid = True\n"
        "        batch = self._batch = next(self._rounds)",
        "batch = self._batch = next(self._rounds)\n        nodes = self._ready(grid, config)\n"
        "        self._has_paid = True",
        "tests/training/test_flower_dry_runs.py -k ends_before_anything_is_paid",
    ),
    "the server does not look at its model": Mutation(
        "src/adadps/training/federated/server.py",
        "        require_separate_examples(self.model)\n",
        "",
        "tests/training/test_federated_dry_runs.py -k before_it_pays",
    ),
    "the text of any exception leaves the device": Mutation(
        "src/adadps/training/federated/dry_runs.py",
        "str(problem) if own else type(problem).__name__",
        "str(problem)",
        "tests/training/test_federated_dry_runs.py -k might_have_raised",
    ),
    "rows that cannot be read are told": Mutation(
        "src/adadps/training/federated/dry_runs.py",
        "except CODE_ERRORS as problem:",
        "except Exception as problem:",
        "tests/training/test_federated_dry_runs.py -k do_not_show",
    ),
    "a refusal that rows might have raised counts": Mutation(
        "src/adadps/training/federated/dry_runs.py",
        "and not (ready and answer.while_reading)",
        "",
        "tests/training/test_federated_dry_runs.py -k might_have_raised",
    ),
    "silence of all devices is released": Mutation(
        "src/adadps/training/federated/server.py",
        "return bool(self.cohort) and all(",
        "return False and all(",
        "tests/training/test_federated_silence.py -k releases_nothing",
    ),
    "an empty cohort counts as silence": Mutation(
        "src/adadps/training/federated/server.py",
        "return bool(self.cohort) and all(",
        "return self.cohort is not None and all(",
        "tests/training/test_federated_silence.py -k cohort_of_nobody",
    ),
    "what a model notes about a user's rows stays": Mutation(
        "src/adadps/engine/local.py",
        "return nullcontext() if self._rows_alone else same_state(self.model, self.loss)",
        "return nullcontext()",
        "tests/engine/test_local_training.py -k hazard_22",
    ),
    "sampling amplifies noise in shares": Mutation(
        "src/adadps/accounting/contract.py",
        "(Sampling.SHUFFLED, _ZERO, Grouping.USERS_IN_SHARES): {_PLD: 1, _RDP: 1},",
        "(Sampling.SHUFFLED, _ZERO, Grouping.USERS_IN_SHARES): {_PLD: 1, _RDP: 1},"
        " (Sampling.FIXED, _REPLACE, Grouping.USERS_IN_SHARES): {_RDP: 2},",
        "tests/methods/test_noise_places.py -k cannot_be_accounted",
    ),
    "a round of an earlier life is this one": Mutation(
        "src/adadps/training/run.py",
        "Batch(self.name, self._taken + 1, self._life)",
        "Batch(self.name, self._taken + 1)",
        "tests/training/test_federated_server.py -k dead_server",
    ),
    "a model that writes into itself is trained": Mutation(
        "src/adadps/engine/passes/side_effects.py",
        "    if written is not None:",
        "    if False:",
        "tests/hazards/test_hazards_of_model_state.py -k is_refused_unpaid",
    ),
    "what a pass writes into the model stays there": Mutation(
        "src/adadps/engine/passes/model_state.py",
        "    finally:\n        held.restore()",
        "    finally:\n        pass",
        "tests/hazards/test_hazards_of_model_state.py -k is_put_back",
    ),
    "tensors may outlive a pass": Mutation(
        "src/adadps/engine/passes/side_effects.py",
        "    if any(True for _ in made.alive()):\n        raise",
        "    if False:\n        raise",
        "tests/hazards/test_hazards_of_model_state.py -k outlives_a_pass",
    ),
    "a generator may be given to a draw": Mutation(
        "src/adadps/engine/passes/side_effects.py",
        "if any(isinstance(one, torch.Generator) for one in given):",
        "if False:",
        "tests/hazards/test_hazards_of_chance.py -k however_it_is_reached",
    ),
    "a pass may set a seed": Mutation(
        "src/adadps/engine/passes/side_effects.py",
        "if torch.equal(one, other) or of_numpy == numpys or of_python == pythons:",
        "if False:",
        "tests/hazards/test_hazards_of_chance.py -k however_it_is_reached",
    ),
    "a patched layer is taken for one of torch": Mutation(
        "src/adadps/engine/rules/layers.py",
        '"forward" in vars(module)  # patched: its class says nothing about what it does',
        "False",
        "tests/hazards/test_hazards_of_choices.py -k is_changed_during_the_run",
    ),
    "a model may change during its run": Mutation(
        "src/adadps/engine/ghost.py",
        "        self._require_unchanged()\n",
        "",
        "tests/hazards/test_hazards_of_choices.py -k is_changed_during_the_run",
    ),
    "what a pass writes into hidden modules and helpers stays there": Mutation(
        "src/adadps/engine/passes/model_state.py",
        "        elif depth < _DEEPEST:",
        "        elif isinstance(held, nn.Module) and depth == 0:",
        "tests/hazards/test_hazards_of_model_state.py -k is_refused_unpaid",
    ),
    "a generator of the model's own is trusted": Mutation(
        "src/adadps/engine/passes/model_state.py",
        "        if self._generators:",
        "        if False:",
        "tests/hazards/test_hazards_of_chance.py -k of_the_models_own",
    ),
    "chance of Python decides which layers are recorded": Mutation(
        "src/adadps/engine/ghost.py",
        "if _runs(ghost, probe) and not generators.have_drawn():",
        "if _runs(ghost, probe):",
        "tests/hazards/test_hazards_of_choices.py -k have_the_general_engine",
    ),
    "models may look at their weights to branch": Mutation(
        "src/adadps/engine/rules/structure.py",
        "or reads.found:",
        "or False:",
        "tests/hazards/test_hazards_of_choices.py -k weights_open_later",
    ),
    "tokens and labels out of range are found in a step": Mutation(
        "src/adadps/engine/passes/validation.py",
        "        _require_integers_in_range(held, loss, data)",
        "        pass",
        "tests/training/test_bad_input.py -k outside_of_the_vocabulary_is_not",
    ),
    "norms of sparse rows are kept": Mutation(
        "src/adadps/data/sparse_rows.py",
        "    def squared_lengths(self, factor: Tensor | None = None) -> Tensor:",
        "    def squared_lengths(self, factor: Tensor | None = None) -> Tensor:\n"
        "        kept = globals().setdefault('_kept', {})\n"
        "        key = len(self)\n"
        "        if key not in kept:\n"
        "            kept[key] = self._fresh(factor)\n"
        "        return kept[key]\n\n"
        "    def _fresh(self, factor: Tensor | None = None) -> Tensor:",
        "tests/hazards/test_hazards_of_batches.py -k hazard_31",
    ),
    "chance inside the model comes from torch's own generator": Mutation(
        "src/adadps/engine/passes/side_effects.py",
        "torch.set_rng_state(_twister_state(secret(4 * _WORDS)))",
        "pass",
        "tests/hazards/test_hazards_of_chance.py -k knows_nothing_about_the_masks",
    ),
    "parameters used beside their layer are not looked for": Mutation(
        "src/adadps/engine/ghost.py",
        "if _goes_through_layers(ghost, probe) and _agree(ghost, general, probe):",
        "if _agree(ghost, general, probe):",
        "tests/hazards/test_hazards_of_choices.py -k behind_a_gate",
    ),
    "batches are not padded": Mutation(
        "src/adadps/engine/objective.py",
        "return -rows % multiple if rows else multiple",
        "return 0 if rows else multiple",
        "tests/contract/test_padding.py -k bit_equal",
    ),
    "synthetic rows touch tables": Mutation(
        "src/adadps/engine/ghost.py",
        "if isinstance(leaf, TokenRows) and synthetic:",
        "if False:",
        "tests/hazards/test_hazards_of_batches.py -k touch_no_table",
    ),
    "synthetic rows weigh as much as others": Mutation(
        "src/adadps/engine/rules/gradients.py",
        "return LayeredGradients(leaves, finite & real, padding=synthetic)",
        "return LayeredGradients(leaves, finite)",
        "tests/hazards/test_hazards_of_batches.py -k hazard_30",
    ),
    "errors of private rows are quoted": Mutation(
        "src/adadps/engine/objective.py",
        "if self._quotes_errors:",
        "if True:",
        "tests/hazards/test_hazards_of_choices.py -k quotes_no_row",
    ),
    "models that mix examples are trained": Mutation(
        "src/adadps/engine/passes/validation.py",
        "    if mixed:\n",
        "    if False:\n",
        "tests/hazards/test_hazards_of_choices.py -k mixes_examples_in_its_own_code",
    ),
    "names are counted without noise": Mutation(
        "src/adadps/accounting/noisy_counts/histograms.py",
        "noisy = randomness.release(held, standard_deviation=price.deviation)",
        "noisy = held",
        "tests/statistical/test_noisy_counts.py -k stated_deviation",
    ),
    "every name is told": Mutation(
        "src/adadps/accounting/noisy_counts/histograms.py",
        "above = (noisy > price.threshold).tolist()",
        "above = (noisy > 0).tolist()",
        "tests/statistical/test_noisy_counts.py -k as_rarely_as",
    ),
    "octaves are counted without noise": Mutation(
        "src/adadps/accounting/noisy_counts/histograms.py",
        "noisy = randomness.release(counts, standard_deviation=deviation).numpy()",
        "noisy = counts.numpy()",
        "tests/statistical/test_noisy_counts.py -k octaves_have",
    ),
    "many columns are counted as one": Mutation(
        "src/adadps/accounting/noisy_counts/price.py",
        "return math.sqrt(self.names + 2 * self.numbers)",
        "return 1.0",
        "tests/property/test_counting_properties.py -k sensitivity",
    ),
    "the threshold forgets that there are several columns": Mutation(
        "src/adadps/accounting/noisy_counts/price.py",
        "one = -math.expm1(math.log1p(-self.delta) / tables)",
        "one = -math.expm1(math.log1p(-self.delta) / 1)",
        "tests/statistical/test_noisy_counts.py -k no_more_than_delta",
    ),
    "delta of a threshold is not subtracted": Mutation(
        "src/adadps/accounting/epsilon.py",
        "event, delta = without_delta(event), delta - spent",
        "event = without_delta(event)",
        "tests/accounting/test_spent_delta.py -k what_is_left",
    ),
    "a ledger forgets delta that was spent": Mutation(
        "src/adadps/accounting/ledger/spending.py",
        "return sum(times * delta_of(one) for one, times in charged)",
        "return 0.0",
        "tests/accounting/test_spent_delta.py -k subtracts_it",
    ),
    "the threshold is not charged": Mutation(
        "src/adadps/accounting/noisy_counts/price.py",
        "return (released, DeltaDpEvent(self.delta)) if self.delta else (released,)",
        "return (released,)",
        "tests/hazards/test_hazards_levels.py -k within_what_was_given",
    ),
    "a count is made before it is paid for": Mutation(
        "src/adadps/accounting/noisy_counts/price.py",
        "        ledger.authorise(event, run=name)\n",
        "        pass\n",
        "tests/hazards/test_hazards_levels.py -k within_what_was_given",
    ),
    "users are counted row by row": Mutation(
        "src/adadps/estimators/tables/paid_survey.py",
        "                chosen[name] = row\n",
        '                chosen[f"{name} {seen[name]}"] = row\n',
        "tests/property/test_counting_properties.py -k many_rows",
    ),
    "a resumed run counts again": Mutation(
        "src/adadps/estimators/tables/paid_levels.py",
        "    if held is not None:\n        return held\n",
        "",
        "tests/hazards/test_hazards_levels.py -k goes_on",
    ),
    "bounds are read off without a word": Mutation(
        "src/adadps/estimators/regressor.py",
        "        if not quiet:\n",
        "        if False:\n",
        "tests/hazards/test_hazards_levels.py -k regressors_warn",
    ),
    "a run tells how many rows there are": Mutation(
        "src/adadps/training/run.py",
        "settings={**self._stepper.settings, **(settings or {})},",
        'settings={**self._stepper.settings, "rows": len(self._stepper._data)},',
        "tests/hazards/test_two_worlds_of_runs.py -k test_a_run_leaves_the_same",
    ),
    "side information is measured before its payment": Mutation(
        "src/adadps/training/run.py",
        "        self._payment.pay_for_side_information()\n        stepper.prepare()",
        "        stepper.prepare()\n        self._payment.pay_for_side_information()",
        "tests/hazards/test_recording_data_set.py -k after_its_payment",
    ),
    "rows behind a private score are looked at unpaid": Mutation(
        "src/adadps/training/tuning/trial.py",
        "    return torch.zeros((1, *features.shape[1:]), dtype=features.dtype, "
        "device=features.device)",
        "    return features[:1]",
        "tests/hazards/test_recording_data_set.py -k after_its_payment",
    ),
    "targets are counted before the first step": Mutation(
        "src/adadps/training/stepper.py",
        "self._all_private = bool(self._is_private.all())",
        "self._all_private = bool(self._is_private.all()) and len(data.targets.unique()) > 0",
        "tests/hazards/test_recording_data_set.py -k read_in_paid_steps",
    ),
}


ESSENTIAL = (
    "the clip is removed",
    "the noise is halved",
    "users are clipped row by row",
    "steps are not charged",
    "what earlier lives paid for is forgotten",
    "a parameter is read without its noise",
    "public rows are trained on as private ones",
    "an exposed chain prints an epsilon",
    "a device sends its update without noise",
    "names are counted without noise",
    "every name is told",
    "delta of a threshold is not subtracted",
)
