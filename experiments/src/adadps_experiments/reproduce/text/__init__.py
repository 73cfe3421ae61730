"""The paper's experiments on text: tables, figures, and how they were tuned."""
