"""The planner: a private run from public facts alone.

method name -> side information and typical norms -> settings -> chain. Tables, scikit-learn
estimators, the doctor, the demo and the experiments all plan here::

    prepared = prepare_method(Method.ADADPS, frequencies, width=10_000)
    plan = plan_training(prepared, examples=20_000, budget=budget, loss=LossFacts(gradient_norm))
    plan.settings, plan.chain

- `methods`: the methods by name, their chains, and norms of typical rows on their way;
- `settings`: batch size, steps, noise multiplier, clip norm and learning rate by one rule;
- `plan`: the whole plan in one call, and what changes where users train locally.
"""
