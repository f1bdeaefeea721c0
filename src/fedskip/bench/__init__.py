"""How fast the engines are, as a ratio to a loop written by hand, in the same process."""
