"""A drafter that guesses a whole block in one pass."""

from forerun.drafters.block.drafter import Block as Block
