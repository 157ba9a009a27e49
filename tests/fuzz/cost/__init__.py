"""Fuzzing by cost: inputs that grow, and what a parser takes for each of their bytes.

An input is a beginning, a fragment that is repeated until the input has the wanted size, and an
end. A parser fails where its processor time or memory for each byte is beyond the bounds of its
target, or grows faster than the input. `work` asks the same of what requests cause behind their
parsers. The crash fuzzers beside this ask whether short inputs are read right; these ask whether
long ones are read in time.
"""
