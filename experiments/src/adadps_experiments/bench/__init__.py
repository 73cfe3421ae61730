"""Time and memory of a training step beside plain torch, Opacus and a microbatch loop."""
