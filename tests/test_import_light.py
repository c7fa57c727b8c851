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


LATER = (
    "torch",
    "numpy",
    "array_api_compat",
    "forerun.engine",
    "forerun.rules",
    "forerun.generation",
)


NAMES = ("generate", "stream", "Sampling", "verify", "rules")


def test_help_and_mistakes_wait_for_no_engine() -> None:
    """Only then does `forerun generate --help` come within 0.3 s; an engine alone takes longer."""
    code = f"""
import sys
sys.argv = ["forerun"]
from forerun.cli import main
for words in (["generate", "--help"], ["sweep", "--help"], ["serv"], ["train", "--sead", "3"]):
    try:
        main(words)
    except SystemExit as end:
        print(end.code, [name for name in {LATER!r} if name in sys.modules], file=sys.stderr)
import forerun as fr
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(4) as threads:
    print(*threads.map(lambda name: getattr(fr, name).__name__, {NAMES!r}), file=sys.stderr)
print("numpy.f2py" in sys.modules, file=sys.stderr)  # a tenth of a second, with all of NumPy
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    told = [line for line in result.stderr.splitlines() if line[0] in "02"]
    assert told == ["0 []", "0 []", "2 []", "2 []"], result.stderr
    names = "generate stream Sampling verify forerun.rules"
    assert result.stderr.splitlines()[-2:] == [names, "False"]
