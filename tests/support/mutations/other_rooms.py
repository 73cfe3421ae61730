"""Lines of the rooms with few mutations."""

from support.mutations.mutation import Mutation

MUTATIONS = {
    "a dataset's own generators keep their seeds": Mutation(
        "src/adadps/data/datasets.py",
        "            give_secret_state(generator, os.urandom)\n",
        "            pass\n",
        "tests/data/test_datasets.py -k generators_of_the_dataset",
    ),
    "transforms draw from known seeds": Mutation(
        "src/adadps/data/datasets.py",
        '    with secret_generators(os.urandom, torch.device("cpu")), warnings',
        "    with warnings",
        "tests/data/test_datasets.py -k secret_generators",
    ),
    "errors of rows that cannot be read are raised": Mutation(
        "src/adadps/data/datasets.py",
        "            except (Exception, SystemExit):\n                secret.finds_others()",
        "            except ZeroDivisionError:\n                secret.finds_others()",
        "tests/data/test_datasets.py -k broken_row_weighs",
    ),
    "rows of a dataset share the memory that it writes into": Mutation(
        "src/adadps/data/items.py",
        "t.to(dtype, copy=True)",
        "t.to(dtype)",
        "tests/data/test_datasets.py -k same_memory",
    ),
    "a model may be changed in the middle of a run": Mutation(
        "src/adadps/training/run.py",
        "            self._stepper.require_same_model()\n            self._pay()",
        "            self._pay()",
        "tests/engine/test_model_form.py -k refused_before",
    ),
    "a model may be converted in the middle of a run": Mutation(
        "src/adadps/engine/objective.py",
        "if _memory_of(parameter) not in (None, memory):",
        "if False:",
        "tests/engine/test_model_form.py -k refused_before",
    ),
    "batches are padded finely where vectors are not filled": Mutation(
        "src/adadps/engine/passes/row_multiple.py",
        "return ROWS if seen.found else FINE",
        "return FINE",
        "tests/contract/test_row_multiple.py -k other_models",
    ),
    "attention multiplies sequences of odd lengths as they are": Mutation(
        "src/adadps/tensors/products.py",
        "(_wide(one) @ _wide(other))[..., :rows, :columns]",
        "one @ other",
        "tests/contract/test_row_multiple.py -k attention_of_odd",
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
    "automatic clipping ignores the norm": Mutation(
        "src/adadps/methods/stages/clipping.py",
        "self.clip_norm / (norms + self.stability), nan=0.0)",
        "self.clip_norm / (0 * norms + self.stability), nan=0.0)",
        "tests/methods/test_automatic_clipping.py -k moves_the_sum",
    ),
    "automatic clipping raises short gradients to the clip norm and beyond": Mutation(
        "src/adadps/methods/stages/clipping.py",
        "self.clip_norm / (norms + self.stability), nan=0.0)",
        "self.clip_norm / (norms - self.stability / 2).abs(), nan=0.0)",
        "tests/methods/test_automatic_clipping.py -k moves_the_sum",
    ),
    "a row that overflows under a matrix stays": Mutation(
        "src/adadps/engine/rules/whitening.py",
        "return torch.where(finite.view(-1, *[1] * (values.ndim - 1)), values, 0)",
        "return values",
        "tests/contract/test_zoo.py -k overflow",
    ),
    "the matrix is left out of the clip": Mutation(
        "src/adadps/engine/rules/whitening.py",
        "found[name] = Outer(a, b) if isinstance(leaf, Outer)",
        "found[name] = Outer(leaf.inputs, b) if isinstance(leaf, Outer)",
        "tests/methods/test_whitening.py -k norms_are_those",
    ),
    "gradients leave no room for the count": Mutation(
        "src/adadps/methods/stages/clipping.py",
        "super()._noise(step) / math.sqrt(1 - self.share)",
        "super()._noise(step)",
        "tests/methods/test_adaptive_clipping.py -k jointly",
    ),
    "the count has half of its noise": Mutation(
        "src/adadps/methods/stages/clipping.py",
        "0.5 * self.noise_multiplier / math.sqrt(self.share)",
        "0.25 * self.noise_multiplier / math.sqrt(self.share)",
        "tests/methods/test_adaptive_clipping.py -k jointly",
    ),
    "units are counted from 0 to 1": Mutation(
        "src/adadps/methods/stages/clipping.py",
        "torch.where(norms <= clip_norm, 0.5, -0.5)",
        "torch.where(norms <= clip_norm, 1.0, 0.0)",
        "tests/methods/test_adaptive_clipping.py -k jointly",
    ),
    "a unit that is blanked out is counted": Mutation(
        "src/adadps/methods/stages/clipping.py",
        "return torch.where(norms > 0, signs, 0.0)",
        "return signs",
        "tests/methods/test_adaptive_clipping.py -k blanked",
    ),
    "a chain learns from releases whose noise is not drawn": Mutation(
        "src/adadps/methods/stages/chain.py",
        "if any(self.learners):",
        "if False:",
        "tests/methods/test_own_releases.py -k drawn_at_once",
    ),
    "a chain learns from the sum before its noise": Mutation(
        "src/adadps/methods/stages/gradients.py",
        "(name, step.release(value, deviation) / units)",
        "(name, step.release(value, 0.0) / units)",
        "tests/methods/test_own_releases.py -k noisy_releases_only",
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
    "a change waits for its noise without D": Mutation(
        "src/adadps/tensors/kernels.py",
        "values[j] *= diagonal[j]",
        "values[j] *= 1.0",
        "tests/engine/test_compiled_training.py -k waits",
    ),
    "rounding lets a sparse norm be too small": Mutation(
        "src/adadps/tensors/kernels.py",
        "raised = total * (1 + rounding * (words + width + 16))",
        "raised = total * (1 - 1e-9)",
        "tests/contract/test_engine_rounding.py",
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
    "spellings of one user are users": Mutation(
        "src/adadps/data/users.py",
        "keys = [user_key(user) for user in held]",
        "keys = [str(user) for user in held]",
        "tests/hazards/test_hazards_user_keys.py -k spellings_of_one",
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
    "the scale is removed": Mutation(
        "src/adadps/methods/stages/gradients.py",
        "return signal.scale(scale), following",
        "return signal, following",
        "tests/property/test_identities.py -k third_door_or_swapping_or_public_statistics",
    ),
    "users are clipped row by row": Mutation(
        "src/adadps/methods/stages/users.py",
        "return chosen, Units(torch.from_numpy(owners), len(drawn), None)",
        "return chosen, None",
        "tests/hazards/test_user_hazards.py -k dominate",
    ),
    "an empty batch is not noised": Mutation(
        "src/adadps/training/stepper.py",
        "        facts = BatchFacts() if self._debug else None\n",
        "        if not len(drawn.rows):\n            return\n"
        "        facts = BatchFacts() if self._debug else None\n",
        "tests/hazards/test_hazards.py -k hazard_08",
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
    "numbers on held-out records pass as covered": Mutation(
        "src/adadps/report/card/meaning.py",
        'return [HELD_OUT_RECORDS] if "held out" in declared else []',
        "return []",
        "tests/hazards/test_hazards_held_out.py -k card_report_and_console",
    ),
    "spellings of one user in a table are users": Mutation(
        "src/adadps/data/tables.py",
        "key = user_key(cell)",
        "key = cell.strip()",
        "tests/hazards/test_hazards_user_keys.py -k four_spellings",
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
    "users are counted row by row": Mutation(
        "src/adadps/estimators/tables/paid_survey.py",
        "                chosen[name] = row\n",
        '                chosen[f"{name} {seen[name]}"] = row\n',
        "tests/property/test_counting_properties.py -k many_rows",
    ),
    "a resumed run counts again": Mutation(
        "src/adadps/estimators/tables/paid_once.py",
        "    if held is not None:\n        return held\n",
        "",
        "tests/hazards/test_hazards_levels.py -k goes_on",
    ),
    "right rows are counted without noise": Mutation(
        "src/adadps/estimators/paid_mix.py",
        "return randomness.release(counts, standard_deviation=price.deviation)",
        "return counts",
        "tests/hazards/test_hazards_of_chosen_features.py -k stated_noise",
    ),
    "a user is scored with every row": Mutation(
        "src/adadps/estimators/paid_mix.py",
        "    if data.users is not None:\n        mixed",
        "    if False:\n        mixed",
        "tests/hazards/test_hazards_of_chosen_features.py -k by_one_at_most",
    ),
    "features are chosen before that is paid for": Mutation(
        "src/adadps/estimators/paid_mix.py",
        "run = pay_before(ledger, price, self.plan)",
        'run = ""',
        "tests/hazards/test_hazards_of_chosen_features.py -k chooses_and_pays",
    ),
    "a text is short or long by its neighbours": Mutation(
        "src/adadps/estimators/short_texts.py",
        "    full = np.minimum(1.0, known / short)",
        "    full = np.minimum(1.0, known / short) * 0 + min(1.0, float(np.mean(known)) / short)",
        "tests/estimators/test_short_texts.py -k alone",
    ),
    "bounds are read off without a word": Mutation(
        "src/adadps/estimators/regressor.py",
        "        if not quiet:\n",
        "        if False:\n",
        "tests/hazards/test_hazards_levels.py -k regressors_warn",
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
}
