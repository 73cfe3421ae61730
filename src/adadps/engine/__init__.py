"""Per-example gradients, secure noise, and the weights that it is added to.

- `waist`: the interfaces between engines, stages and weights: per-unit gradients, steps, updates.
- `ghost`, `general`, `local`: the engines. Ghost never stores an example's gradient, general stores
  it for any model that vmap can run, local trains within each user. `choice` picks one for a model.
- `rules`: gradients of each kind of layer from its inputs and output gradients, for the ghost
  engine. A rule for a new layer is a function in `rules.layers`, entered in its table `_RULES`;
  layers that also run on whole batches are listed in `rules.sequence`. New forms of gradients
  implement `rules.gradients.PerExampleGradients` and join the tests in `tests/contract`.
- `passes`: how a model is run on private rows: checked on synthetic rows first (`validation`), in
  isolation, so that a pass leaves no state, no error text and no predictable draws behind.
- `objective`: model, loss and engine together: padded, isolated passes over pieces of a batch.
- `noise`: secure Gaussian noise on a public grid, drawn at once, or late: when a row is next read.
- `weights`: the parameters of a run, which cannot be read without their noise.
- `losses`: losses with one value per example.
"""
