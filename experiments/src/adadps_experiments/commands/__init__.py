"""The commands `reproduce`, `bench` and `data`."""
