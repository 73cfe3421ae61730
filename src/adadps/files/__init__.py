"""Files written whole or not at all, removed only if they are ours; locks, forks, strict JSON."""
