"""How far the operator carries: planning, passes over many jobs, a real API server with simulated nodes.

`python -m bench.scale.planning`, `.passes`, `.cluster`; each adds its figures to bench/results/scale.json and says what
the goal was. Figures are quoted in docs/performance.md, section "Operator".
"""
