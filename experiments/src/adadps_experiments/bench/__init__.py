"""`adadps bench`: time and memory of a step beside plain torch, Opacus and a microbatch loop."""
