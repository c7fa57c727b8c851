"""Training a drafter for a target: its own answers, then self-distillation on them."""
