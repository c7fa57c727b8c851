"""What needs no framework loads none: one process, since this one may have loaded them."""

from __future__ import annotations

import subprocess
import sys

HEAVY = (
    "torch", "transformers", "jax", "triton", "matplotlib", "scipy", "numba", "safetensors",
    "llguidance",
)  # fmt: skip
STEPS = {
    "`import forerun`": "import forerun as fr",
    "imports that others write": """
import forerun.doctor.diagnosis
from forerun.doctor.diagnosis import diagnose
import forerun as fr
assert callable(fr.doctor) and callable(diagnose)
""",
    "the classic functions": """
from forerun.classic import coin_round, numpy_loop, numpy_verify, torch_verify
""",
    "models in NumPy": """
import forerun.models as models
table = models.TableModel.random(3, 1, seed=0)
table.score(table.start(1, 4), [0], [[1, 2]], [2])
fr.wrap(lambda ids: [0.5, 0.5])
""",
    "the engine": """
target = models.TableModel.random(5, 1, seed=0)
fr.generate(target, [1], drafter=fr.drafters.NGram(), sampling=fr.Sampling(top_p=0.9), logprobs=1)
list(fr.stream(target, [1], drafter=fr.drafters.Model(target), rule="block", max_new_tokens=9))
""",
    "`forerun simulate`": "import forerun.cli.simulate",
}
"""By what they are; a later step may use the names of an earlier one."""


def test_what_needs_no_framework_loads_none() -> None:
    code = f"""
import sys
names = {{}}
for step, code in {STEPS!r}.items():
    exec(code, names)
    print(step, [name for name in {HEAVY!r} if name in sys.modules])
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.splitlines() == [f"{step} []" for step in STEPS], result.stderr
