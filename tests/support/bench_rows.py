"""Rows of the benchmark."""


def row_of(workload, contender, ms=1.0, mb=10.0, **extra):
    numbers = {"ms_per_step": ms, "peak_mb": mb, "threads": 1}
    return {"workload": workload, "contender": contender, **numbers, **extra}
