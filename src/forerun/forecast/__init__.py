"""Forecasts without models: costs of passes, simulated rounds, and the best draft length."""

from forerun.forecast.costs import CostModel, MeasuredCosts, PassCost, Roofline
from forerun.forecast.simulator import (
    Estimate,
    Scan,
    Simulation,
    draw_accepted,
    replay,
    scan,
    simulate,
)

__all__ = [
    "CostModel",
    "Estimate",
    "MeasuredCosts",
    "PassCost",
    "Roofline",
    "Scan",
    "Simulation",
    "draw_accepted",
    "replay",
    "scan",
    "simulate",
]
