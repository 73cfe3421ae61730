"""Lines of training, tuning and federations."""

from support.mutations.mutation import Mutation

MUTATIONS = {
    "late rows are settled by the process that reads them": Mutation(
        "src/adadps/engine/waist.py",
        "wanted = {**wanted, **self._group.union(asked)}",
        "wanted = {**wanted, **asked}",
        "tests/training/test_processes.py -k replicas_are_bit_equal",
    ),
    "every process makes a key of its own for the noise": Mutation(
        "src/adadps/engine/noise/randomness.py",
        "return Randomness((int.from_bytes(own[:16]), own[16:]), self.mark, noise_key)",
        "return Randomness((int.from_bytes(own[:16]), own[16:]), self.mark)",
        "tests/training/test_processes.py -k replicas_are_bit_equal",
    ),
    "every process draws from all rows": Mutation(
        "src/adadps/training/processes.py",
        "return data.part(rows)",
        "return data",
        "tests/training/test_processes.py -k train_what_one_does",
    ),
    "counts of rows are charged as counts of users": Mutation(
        "src/adadps/training/calibration.py",
        "count = len(torch.unique(data.users))",
        "count = len(data)",
        "tests/hazards/test_user_hazards.py -k counts_of_rows",
    ),
    "the normaliser follows the data": Mutation(
        "src/adadps/training/stepper.py",
        "expected_size=self._expected_size,\n            noise=",
        "expected_size=float(len(self._data)),\n            noise=",
        "tests/hazards/test_hazards.py -k hazard_04",
    ),
    "steps are not charged": Mutation(
        "src/adadps/training/run.py",
        "            self._pay()\n",
        "",
        "tests/hazards/test_hazards.py -k hazard_09",
    ),
    "a resumed run forgets that steps were lost": Mutation(
        "src/adadps/training/payment.py",
        "        if not self._has_lost or not left:\n            return planned\n",
        "        return planned\n",
        "tests/training/test_resuming_costs.py -k hazard_16",
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
    "run.params move row by row": Mutation(
        "src/adadps/training/stepper.py",
        "return self.weights.published()",
        "return self.weights.read()",
        "tests/hazards/test_hazards_reads.py -k a_view_does_not_tell",
    ),
    "public rows are trained on as private ones": Mutation(
        "src/adadps/training/stepper.py",
        "kept = self._is_private[rows]",
        "kept = self._is_private[rows] | True",
        "tests/hazards/test_hazards.py -k hazard_20",
    ),
    "side information is drawn before the plan is checked": Mutation(
        "src/adadps/training/run.py",
        "        if must_fit:\n            self._require_room()\n",
        "",
        "tests/methods/test_noisy_frequency_prices.py -k too_small",
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
    "a round of an earlier life is this one": Mutation(
        "src/adadps/training/run.py",
        "Batch(self.name, self._taken + 1, self._life)",
        "Batch(self.name, self._taken + 1)",
        "tests/training/test_federated_server.py -k dead_server",
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
