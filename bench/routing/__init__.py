"""How well policies choose: the replay over published traces, loads, faults and what a picker sees."""
