"""What a run leaves behind: its result, its card, its page."""
