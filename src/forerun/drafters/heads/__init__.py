"""A drafter that is trained for its target."""

from forerun.drafters.heads.drafter import Heads as Heads
