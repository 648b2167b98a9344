"""Bakes a prior for a cartridge: which blocks of a long prefix its readers cannot do without.

    python -m kvatlas.bake --model MODEL --text prefix.txt --prefix-hash cartridge-1

An example to copy from: `cartridge.py` is the model's side, `scores.py` one function for each
algorithm. A new algorithm is a new function there, and a line in `ALGORITHMS`.
"""
