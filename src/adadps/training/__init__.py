"""Training: one run, paid for step by step.

- `fit`: train from start to end, or in a loop of your own. `calibration`: what both complete for
  you (sampler, steps, noise), and whether method and data fit together.
- `run`: the contract of a run: pay, draw, step, in that order, once each. `payment`: its account on
  a ledger, and whether a plan fits the budget. `stepper`: what moves; its docstring follows a step
  from batch to weights.
- `checkpoint`: what a run needs to resume. `describe`: what is public about a run. `evaluation`:
  metrics on public and held-out data.
- `tuning`: several trials, all paid for. `federated`: users are devices, here or on Flower.
"""
