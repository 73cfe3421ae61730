"""What a pass over private rows must not do: checks on synthetic rows, state, generators."""
