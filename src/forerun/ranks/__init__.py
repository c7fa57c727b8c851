"""A model whose weights are spread over several processes, the *ranks*, one for each GPU.

Rank 0 plans, drafts, decides and samples.  It sends each call of the target (`start`, `score`,
`commit` and so on) to the others as a line of JSON, and all ranks execute it together: the model's
layers add up their shares in between.  Only rank 0 has an engine, so no clock and no policy can
make ranks differ.
"""

from __future__ import annotations

from forerun.ranks.follower import follow as follow
from forerun.ranks.follower import is_follower as is_follower
from forerun.ranks.loading import load as load
from forerun.ranks.meeting import RankError as RankError
from forerun.ranks.model import TensorParallelModel as TensorParallelModel
