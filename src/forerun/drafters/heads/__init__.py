"""A drafter that is a small network trained for its target."""

from forerun.drafters.heads.drafter import Heads as Heads
