"""Per-example gradients, secure noise, and the weights that it is added to.

- `waist`: what engines, stages and weights know of one another: per-unit gradients, clipped sums,
  steps and updates; and the weights of a run, which cannot be read without their noise.
- `ghost`, `general`, `local`: the engines. Ghost never stores an example's gradient, general stores
  it for any model that vmap can run, local trains within each user. `choice.engine_for` picks one.
- `rules`: gradients of each kind of layer from its inputs and output gradients, for the ghost
  engine. A rule for a new layer is a function in `rules.layers`, entered in its table `_RULES`;
  layers that can also run on whole batches are listed in `_WITH_WEIGHTS` of `rules.sequence`. New
  forms of gradients implement `rules.gradients.PerExampleGradients` and join `tests/contract`.
- `objective`: model, loss and engine together: padded passes over pieces of a batch (`chunked`),
  in isolation: a pass leaves no state and no error text behind, and its draws are unpredictable.
- `passes`: what that takes: what a pass must leave as it was, and secret generators
  (`model_state`), and the checks of a model before training (`validation`).
- `noise`: secure Gaussian noise on a public grid, drawn at once, or late: when a row is next read.
- `losses`: losses with one value per example.
"""
