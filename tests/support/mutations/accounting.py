"""Lines of the accounting."""

from support.mutations.mutation import Mutation

MUTATIONS = {
    "the factor 2 of labelled groups is removed": Mutation(
        "src/adadps/accounting/contract.py",
        "(Sampling.POISSON, _ADD, Grouping.LABELLED): {_PLD: 2, _RDP: 2}",
        "(Sampling.POISSON, _ADD, Grouping.LABELLED): {_PLD: 1, _RDP: 1}",
        "tests/hazards/test_hazards.py -k hazard_03",
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
    "a ledger adds up users and examples": Mutation(
        "src/adadps/accounting/ledger/terms.py",
        "if self != found:",
        "if self != LedgerTerms(found.relation, found.accountant, self.unit):",
        "tests/training/test_user_level.py -k serves_one_unit",
    ),
    "the factor 2 of fixed-size batches is removed": Mutation(
        "src/adadps/accounting/contract.py",
        "(Sampling.FIXED, _REPLACE, Grouping.NONE): {_RDP: 2}",
        "(Sampling.FIXED, _REPLACE, Grouping.NONE): {_RDP: 1}",
        "tests/contract/test_contract_table.py",
    ),
    "what earlier lives paid for is forgotten": Mutation(
        "src/adadps/accounting/ledger/disk.py",
        '"WHERE run IN (SELECT id FROM runs WHERE name = ?) GROUP BY event ORDER BY min(id)"',
        '"WHERE run = (SELECT max(id) FROM runs WHERE name = ?) GROUP BY event ORDER BY min(id)"',
        "tests/training/test_resuming_costs.py -k hazard_16",
    ),
    "steps that are reserved together are charged as one": Mutation(
        "src/adadps/accounting/ledger/disk.py",
        "[(self._lives[payer], number)] * count,",
        "[(self._lives[payer], number)],",
        "tests/accounting/test_disk_ledger_entries.py -k at_once",
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
    "a measured sum forgets that replacing one moves it by 2C": Mutation(
        "src/adadps/accounting/contract.py",
        "    _REPLACE: {_PLD: 1, _RDP: 2},\n",
        "    _REPLACE: {_PLD: 1, _RDP: 1},\n",
        "tests/methods/test_noisy_frequency_prices.py -k hazard_20_the_price",
    ),
    "tiny divergences are left to rounding": Mutation(
        "src/adadps/accounting/renyi.py",
        "    accounted[tiny] = np.fmax(accounted[tiny], exact)\n",
        "",
        "tests/property/test_accounting_properties.py -k however_small_or_larger_batches",
    ),
    "sampling amplifies noise in shares": Mutation(
        "src/adadps/accounting/contract.py",
        "(Sampling.SHUFFLED, _ZERO, Grouping.USERS_IN_SHARES): {_PLD: 1, _RDP: 1},",
        "(Sampling.SHUFFLED, _ZERO, Grouping.USERS_IN_SHARES): {_PLD: 1, _RDP: 1},"
        " (Sampling.FIXED, _REPLACE, Grouping.USERS_IN_SHARES): {_RDP: 2},",
        "tests/methods/test_noise_places.py -k cannot_be_accounted",
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
    "the counts of several candidates have the noise of one": Mutation(
        "src/adadps/accounting/noisy_counts/choice.py",
        "return self.noise_multiplier * math.sqrt(self.candidates)",
        "return self.noise_multiplier",
        "tests/hazards/test_hazards_of_chosen_features.py -k all_candidates",
    ),
    "the trials of one candidate are charged for all": Mutation(
        "src/adadps/accounting/noisy_counts/choice.py",
        "self.trial_noise, self.candidates * self.steps, self.accountant, self.sampler.alone",
        "self.trial_noise, self.steps, self.accountant, self.sampler.alone",
        "tests/hazards/test_hazards_of_chosen_features.py -k all_candidates",
    ),
}
