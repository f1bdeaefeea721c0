"""The FedSkip paper (Fan et al., ICDM 2022), reproduced: its numbers, our runs, and what follows from both.

`python -m reproduction` lists what it can do. Nothing here is part of the installed package.
"""
