"""What a pass over rows may do, and models tried on synthetic rows."""
