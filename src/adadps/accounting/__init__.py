"""What a run costs, and the ledger that records who paid.

- `contract`: the table of sampler, relation and grouping that owns every factor of two.
- `samplers`: how batches are drawn, and the privacy event of drawing them. A new sampler is a
  subclass of `Sampler` there, with its rows in the contract.
- `groups`: examples that are clipped as one.
- `events`: privacy events, their text, and which delta is small enough.
- `epsilon`: epsilon of what events compose to, and the noise or the steps for a budget; `renyi`
  computes Rényi divergences. `plan`: the same from numbers alone, before any data is read.
- `ledger`: charges in memory or on disk, and the budget that they must fit.
- `noisy_counts`: paid counts of levels, classes and bounds that were not declared.
"""
