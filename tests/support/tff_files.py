"""Small h5 files in the layout of TensorFlow Federated."""

import numpy as np
import pytest

h5py = pytest.importorskip("h5py")

USERS = {
    "00000001": [
        ("how do i sort ?", "sorting a list", "python|list|vb . net", 7, "2010-01-08", "question"),
        ("use sorted .", "sorting a list", "python|list|vb . net", 7, "2010-01-09", "answer"),
        ("thanks .", "sorting a list", "", -3, "2010-01-10", "answer"),
    ],
    "00000017": [("naïve café ünï → 漢字", "ε", "c#", 0, "2011-01-01 09:34:05.1 UTC", "question")],
    "empty": [],
}
FIELDS = ("tokens", "title", "tags", "score", "creation_date", "type")


def write(path, users=USERS, fixed_length=False, **changed):
    """A file of the layout; ``changed`` replaces datasets of the first user, or leaves them out."""
    with h5py.File(path, "w") as file:
        for number, (user, rows) in enumerate(users.items()):
            group = file.create_group(f"examples/{user}")
            columns = dict(zip(FIELDS, zip(*rows, strict=True), strict=True)) if rows else {}
            for name in FIELDS:
                values = columns.get(name, ())
                if number == 0 and name in changed:
                    if changed[name] is not None:
                        group.create_dataset(name, data=changed[name])
                elif name == "score":
                    group.create_dataset(name, data=np.array(values, dtype=np.int64))
                elif fixed_length and values:
                    group.create_dataset(name, data=np.array([v.encode() for v in values]))
                else:
                    kind = h5py.string_dtype()
                    group.create_dataset(name, data=np.array(values, dtype=object), dtype=kind)
    return path
