"""Makes the tables of docs/results.md from the JSON files in benchmarks/results.

    python scripts/results.py

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; all else on the page is written by
hand.  tests/test_results.py fails when a table is not what the JSON files give.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "results.md"
TABLE = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

PLAIN, DEFAULT, HEAT = "forerun plain", "heads + suffix, auto", ", T 0.8"
X86, ARM, SERVER, GPU = "x86-2-cores", "aarch64-2-cores", "x86-16-cores", "h200"
EARLIER = "x86-2-cores-earlier"
NINE_RUNS = [f"{SERVER}/laptop-{number}" for number in range(1, 10)]
GROUPS = {
    "chat": "chat",
    "translation": "translation",
    "summarization": "summaries",
    "qa": "questions",
    "math_reasoning": "maths",
    "rag": "answers from documents",
}


class Table(NamedTuple):
    """A table and the files that its figures come from."""

    titles: Sequence[str]
    rows: Iterable[Sequence[object]]
    files: Sequence[str]


def read(name: str) -> Any:
    """The JSON file of that name, as `MACHINE/NAME`."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def rates(name: str) -> dict[str, float]:
    """Tokens per second of each contender of a run of laptop.py."""
    return {key: row["tokens_per_second"] for key, row in read(name)["results"].items()}


def gains_by_group(name: str) -> dict[str, float]:
    """The default's tokens per second over plain decoding's, by task group."""
    results = read(name)["results"]
    plain, default = (results[key]["tokens_per_second_by_group"] for key in (PLAIN, DEFAULT))
    return {group: default[group] / plain[group] for group in plain}


def same_text() -> Table:
    float32, half = read(f"{GPU}/same_text"), read(f"{GPU}/gpu_same_text")
    cases = [row for row in float32["rows"] if (row["drafter"], row["batch"]) != ("plain", 1)]
    (equal,) = {row["identical"] for row in cases}
    (equal_half,) = {row["same"] for row in half["rows"]}
    (of,) = {row["of"] for row in half["rows"]}
    return Table(
        ("precision", "temperature", "ways of speculating", "texts equal to plain decoding"),
        [
            ("float32", "0.8", len(cases), f"{equal} of {float32['prompts']} in each"),
            ("bfloat16", "0 and 0.8", len(half["rows"]), f"{equal_half} of {of} in each"),
        ],
        [f"{GPU}/same_text", f"{GPU}/gpu_same_text"],
    )


def default() -> Table:
    files = [f"{X86}/laptop-llama", f"{X86}/laptop", f"{ARM}/laptop"]
    files += [f"{ARM}/laptop-default", f"{SERVER}/laptop-llama"]
    rows = []
    for file in files:
        speed = rates(file)
        peers = [speed.get(peer) for peer in ("transformers greedy", "llama.cpp")]
        shown = [f"{peer:.0f}" if peer else "" for peer in peers]
        ours = speed[PLAIN], speed[DEFAULT]
        ratio = f"{ours[1] / ours[0]:.2f}"
        rows.append((file.split("/")[0], read(file)["prompts"], *shown, *map(whole, ours), ratio))
    speeds = [rates(file) for file in NINE_RUNS]
    gains = [speed[DEFAULT] / speed[PLAIN] for speed in speeds]
    ours = median(s[PLAIN] for s in speeds), median(s[DEFAULT] for s in speeds)
    many = f"{min(gains):.2f} to {max(gains):.2f}"
    prompts = read(NINE_RUNS[0])["prompts"]
    rows.append((f"{SERVER}, nine runs", prompts, "", "", *map(whole, ours), many))
    return Table(
        ("machine", "prompts", "transformers", "llama.cpp", "ours plain", "default", "gain"),
        rows,
        [*files, NINE_RUNS[0]],
    )


def groups() -> Table:
    on_x86, on_arm = (
        gains_by_group(f"{X86}/laptop"),
        [gains_by_group(f"{ARM}/laptop-{run}") for run in ("default", "again")],
    )
    nine = [gains_by_group(file) for file in NINE_RUNS]
    rows = [
        (
            title,
            f"{on_x86[group]:.2f}",
            f"{mean(run[group] for run in on_arm):.2f}",
            f"{mean(run[group] for run in nine):.2f}",
            f"{min(run[group] for run in nine):.2f}",
        )
        for group, title in GROUPS.items()
    ]
    return Table(
        ("task group", X86, f"{ARM}, two runs", f"{SERVER}, mean of nine", "least of nine"),
        rows,
        [f"{X86}/laptop", *(f"{ARM}/laptop-{run}" for run in ("default", "again")), *NINE_RUNS],
    )


def sampled() -> Table:
    files = [f"{ARM}/laptop-sampled", f"{SERVER}/laptop-sampled", f"{SERVER}/laptop-warm"]
    rows = []
    for file in files:
        speed = rates(file)
        greedy = [whole(speed[key]) if key in speed else "" for key in (PLAIN, DEFAULT)]
        plain, drafted = speed[PLAIN + HEAT], speed[DEFAULT + HEAT]
        gain = f"{drafted / plain:.2f}"
        rows.append((file.split("/")[0], *greedy, whole(plain), whole(drafted), gain))
    titles = "machine", "greedy, plain", "greedy, default", "sampled, plain", "sampled, default"
    return Table((*titles, "gain"), rows, files)


def passes() -> Table:
    sizes = "1", "2", "3", "4", "6", "8", "17"
    files = [f"{machine}/cpu_pass" for machine in (X86, ARM)]
    rows = []
    for file in files:
        found = read(file)["pass_ms"]
        for kind, title in {"lean": "ours", "transformers": "transformers"}.items():
            times = [f"{found[size][kind]['median']:.1f}" for size in sizes]
            rows.append((file.split("/")[0], title, *times))
    return Table(("machine", "tokens in the pass", *sizes), rows, files)


def decoding() -> Table:
    kinds = {"lean": "ours", "llama.cpp": "llama.cpp", "transformers": "transformers"}
    files = [f"{X86}/cpu_pass-llama", f"{ARM}/cpu_pass"]
    rows = []
    for file in files:
        found = read(file)
        for kind, title in kinds.items():
            greedy = whole(found["greedy_tokens_per_second"][kind])
            prompt = whole(found["prompt_ms"]["256"][kind]["median"])
            context = f"{found['cost_of_context'][kind]:.2f}"
            rows.append((file.split("/")[0], title, greedy, prompt, context))
    titles = "machine", "by", "tokens/s", "prompt of 256, ms", "token after 2,000 over after 64"
    return Table(titles, rows, files)


def larger() -> Table:
    """Models of half a billion parameters and more, in a GGUF file."""
    files, rows = [f"{X86}/cpu_pass-{size}" for size in ("0.5b", "1.5b")], []
    for file in files:
        found = read(file)
        for kind, title in (("lean", "ours"), ("llama.cpp", "llama.cpp")):
            prompts = [whole(found["prompt_ms"][size][kind]["median"]) for size in ("64", "256")]
            step = f"{found['pass_ms']['1'][kind]['median']:.1f}"
            greedy = f"{found['greedy_tokens_per_second'][kind]:.1f}"
            rows.append((file.rpartition("-")[2].upper(), title, step, greedy, *prompts))
    titles = "model", "by", "pass of a token, ms", "tokens/s", "prompt of 64, ms", "of 256, ms"
    return Table(titles, rows, files)


def code() -> Table:
    """Code prompts on a model of more than a billion parameters, on a CPU."""
    found, rows = read(f"{X86}/code"), []
    for name in ("plain", "default", "model", "heads", "heads + suffix"):
        gains = found[name]["speed_against_plain"]["by_group"].values()
        rows.append((name, *code_cells(found[name]), *(f"{gain:.2f}" for gain in gains)))
    return Table(("drafter", *CODE_TITLES, "writing", "editing"), rows, [f"{X86}/code"])


def code_on_gpu() -> Table:
    """The same model on a GPU, greedily and sampled."""
    files = ["h200/code-1.5b", "h200/code-1.5b-sampled"]
    rows: list[Sequence[object]] = []
    for file in files:
        found = read(file)
        names = [name for name in ("plain", "model", "heads", "heads, raced tree") if name in found]
        rows += [(name, str(found["temperature"]), *code_cells(found[name])) for name in names]
    return Table(("drafter", "temperature", *CODE_TITLES), rows, files)


CODE_TITLES = "tokens/s", "tokens per round", "gain"


def code_cells(row: dict[str, Any]) -> tuple[str, str, str]:
    speed, per_round = row["tokens_per_second"], row["tokens_per_round"]["mean"]
    gain = row["speed_against_plain"]["overall"]
    shown = f"{speed:.1f}" if speed < 100 else whole(speed)
    return shown, f"{per_round:.2f}", f"{gain:.2f}"


def drafters() -> Table:
    found = read(f"{EARLIER}/drafters")["results"]
    greedy, warm = (found[temperature]["rows"] for temperature in ("0.0", "0.8"))
    names = "ngram", "suffix", "quantized int8", "first 12 layers"
    rows = [
        (
            name,
            *drafter_cells(greedy[f"{name}, chain"]),
            *drafter_cells(greedy[f"{name}, tree"]),
            *drafter_cells(warm[f"{name}, chain"]),
        )
        for name in names
    ]
    peer = "transformers prompt lookup"
    rows.append((peer, *drafter_cells(greedy[peer]), "", "", *drafter_cells(warm[peer])))
    titles = "chain", "gain", "tree", "gain", "chain, T 0.8", "gain"
    return Table(("drafter", *titles), rows, [f"{EARLIER}/drafters"])


DRAFTER_TITLES = "tokens per round", "gain", "tokens per round, T 0.8", "gain, T 0.8"


def drafter_cells(row: Any) -> tuple[str, str]:
    gain = row["speed_against_no_drafter"]["median"]
    return f"{row['tokens_per_round']['mean']:.2f}", f"{gain:.2f}"


def heads() -> Table:
    files = [(X86, "heads", "0.0"), (X86, "heads", "0.8"), (X86, "heads48", "0.0")]
    files.append((ARM, "heads48", "0.0"))
    rows = []
    for machine, name, temperature in files:
        found = read(f"{machine}/{name}")["results"][temperature]
        cells = [drafter_cells(found["rows"][f"heads, {draft}"]) for draft in ("chain", "tree")]
        rows.append((machine, found["prompts"], temperature, *cells[0], *cells[1]))
    titles = "machine", "prompts", "T", "chain", "gain", "tree", "gain"
    return Table(titles, rows, [f"{X86}/heads", f"{X86}/heads48", f"{ARM}/heads48"])


def rule() -> Table:
    names = "ratio", "block", "match"
    rows = [
        (
            cell["batch"],
            f"{cell['overlap_of_laws']:.2f}",
            *(f"{cell['rules'][name]['ratio_to_peer']:.2f}" for name in names),
        )
        for cell in read(f"{EARLIER}/verify")["results"]
    ]
    titles = "batch", "overlap of drafter and target", *(f"`{name}`" for name in names)
    return Table(titles, rows, [f"{EARLIER}/verify", f"{ARM}/verify"])


def gpu() -> Table:
    found = read(f"{GPU}/gpu_batch1")["results"]
    lengths = "0", "5", "6", "8", "auto"
    cell = "{}, K {}, agreement 0.81, batch 1, prompt 64"
    rows = [
        (f"`{rule}`", *(whole(found[cell.format(rule, k)]["tokens_per_second"]) for k in lengths))
        for rule in ("match", "ratio", "block")
    ]
    return Table(("rule", "plain", "K = 5", "K = 6", "K = 8", "auto"), rows, [f"{GPU}/gpu_batch1"])


def gpu_peers() -> Table:
    found = read(f"{GPU}/gpu_ratio")["results"]
    ours = "ratio, K {}, agreement 0.80, batch 1, prompt 64"
    names = {
        "ours, plain": ours.format(0),
        "ours, `ratio`, K = 6": ours.format(6),
        "transformers": "transformers, plain",
        "transformers, assisted": "transformers, assisted, K 5",
        "transformers, static cache, compiled": "transformers, static cache, compiled",
        "transformers' forward in our captured passes": "transformers' forward, captured",
    }
    rows = [(title, whole(found[name]["tokens_per_second"])) for title, name in names.items()]
    return Table(("batch 1", "tokens/s"), rows, [f"{GPU}/gpu_ratio"])


def gpu_batches() -> Table:
    rows = []
    wide = "0.90", ("1", "64")
    for file, (agreement, batches) in (
        ("gpu_batches", ("0.80", ("8", "32"))),
        ("gpu_batches", ("0.30", ("8", "32"))),
        ("gpu_wide", wide),
    ):
        found = read(f"{GPU}/{file}")["results"]
        for batch in batches:
            cell = f"ratio, K {{}}, agreement {agreement}, batch {batch}, prompt 64"
            plain, auto = (
                found[cell.format(length)]["tokens_per_second"] for length in ("0", "auto")
            )
            rows.append((agreement, batch, whole(plain), whole(auto), f"{auto / plain:.2f}"))
    titles = "agreement", "batch", "plain, tokens/s", "auto, tokens/s", "gain"
    return Table(titles, rows, [f"{GPU}/gpu_batches", f"{GPU}/gpu_wide"])


def gpu_passes() -> Table:
    found = read(f"{GPU}/gpu_batch1")["results"]
    sizes = "1", "6", "16", "32", "64", "128"
    row = [f"{found[f'pass of {size} at 64']['ms']:.2f}" for size in sizes]
    limit = f"{found['pass of 1 at 64']['limit']:.2f}"
    titles = "tokens in the pass", *sizes, "limit"
    return Table(titles, [("ms", *row, limit)], [f"{GPU}/gpu_batch1"])


def gpu_kernels() -> Table:
    results = read(f"{GPU}/gpu_kernels")["results"]
    found = {(row["what"], row["batch"]): row["ms"] for row in results}
    batches = 1, 8, 64, 256
    rows = [
        (f"`{rule}`", *(f"{found[rule, batch]:.3f}" for batch in batches))
        for rule in ("match", "ratio", "block")
    ]
    titles = "rule", *(f"batch {batch}" for batch in batches)
    return Table(titles, rows, [f"{GPU}/gpu_kernels"])


def server() -> Table:
    files = [f"{X86}/serve", f"{ARM}/serve", f"{ARM}/serve_contenders"]
    x86, arm, peers = (read(file)["results"] for file in files)
    rows = []
    for machine, found, beside in ((X86, x86, x86), (ARM, arm, peers)):
        for clients, row in found.items():
            on, off = row["on"], row["off"]
            speeds = [
                whole(each["tokens_per_second"]["median"]) if each else ""
                for each in (on, off, *map(beside[clients].get, ("llama.cpp", "transformers")))
            ]
            ratio = f"{off['times_slower_than_on']['median']:.2f}"
            first = f"{on['first_token_ms']['p50'] / 1000:.1f}"
            following = whole(on["inter_token_ms"]["p50"])
            rows.append((machine, clients, *speeds[:2], ratio, first, following, *speeds[2:]))
    titles = "machine", "clients", "on", "off", "on over off", "first token, s", "next token, ms"
    return Table((*titles, "llama.cpp", "transformers"), rows, files)


def others() -> Table:
    """One line for each of the smaller benchmarks."""
    answers: dict[str, Sequence[object]] = {}
    starts = [read(f"{machine}/start")["results"] for machine in (X86, ARM)]
    for name in ("first start", "later starts"):
        seconds = [whole(run[name]["seconds"]["median"]) for run in starts]
        answers[f"{name}, seconds: {X86}, {ARM}"] = seconds
    halves = read(f"{ARM}/half_weights")["results"]
    kinds = "lean, bfloat16 weights", "transformers, float32", "transformers, bfloat16"
    speeds = [halves[kind]["tokens_per_second"]["median"] for kind in kinds]
    question = "a bfloat16 checkpoint, tokens/s: ours; transformers in float32, in bfloat16"
    answers[question] = [f"{speed:.2f}" for speed in speeds]
    rounds = read(f"{ARM}/round")["microseconds per round outside the models"]
    plain, drafted = (rounds[f"batch 1, greedy, {name}"] for name in ("plain", "draft of 5"))
    question = "a greedy round outside the model, µs: plain, draft of five"
    answers[question] = [whole(row["microseconds"]) for row in (plain, drafted)]
    suffix = read(f"{ARM}/suffix")["largest over smallest"]
    answers["suffix lookup after a million tokens over after a thousand"] = [f"{suffix:.2f}"]
    rows = {(row["drafter"], row["forced"]): row for row in read(f"{ARM}/grammar")["rows"]}
    question = "100 answers by a JSON schema: valid, cut by the limit, wrong"
    answers[question] = [rows["plain", False][name] for name in ("valid", "cut", "wrong")]
    row = rows["suffix", True]
    question = "the same with suffix lookup: equal texts, tokens per round"
    answers[question] = [row["identical"], f"{row['tokens_per_round']:.2f}"]
    events = read(f"{ARM}/come_and_go")["results"]
    samples, turn = "eight samples of 1,000 tokens", "second turn after 1,000 tokens"
    ratio = events[samples]["times_faster"]["median"]
    answers[f"{samples} in one call, times as fast as eight calls"] = [f"{ratio:.1f}"]
    ratio = events[turn]["times_sooner"]["median"]
    answers[f"first token of a {turn}, times sooner"] = [whole(ratio)]
    pauses = [events[f"pause, prompt {how}"]["longest_over_usual"] for how in ("whole", "in parts")]
    question = "four streams beside a prompt of 1,500 tokens, longest round over a usual one: "
    answers[question + "read whole, in parts"] = [f"{pause['median']:.1f}" for pause in pauses]
    killed = read(f"{ARM}/batch")["results"]["killed"]
    question = "`forerun batch` killed three times: lines, twice, equal to the undisturbed run"
    answers[question] = [killed[name] for name in ("num_lines", "num_twice", "num_equal")]
    workers = read(f"{ARM}/batch_laps")["results"]["two_workers_over_one"]["median"]
    answers["two workers over one, on two cores"] = [f"{workers:.2f}"]
    scale = read(f"{ARM}/scale")["results"]
    deaths = [scale["deaths"]["results"][name] for name in ("forerun", "ray_serve")]
    question = "replicas killed every 5 seconds, whole answers: ours, plain Ray Serve"
    answers[question] = [f"{each['whole']} of {each['asked']}" for each in deaths]
    replicas = scale["speed"]["results"]["two"]["times_one_replica"]["median"]
    answers["two replicas over one"] = [f"{replicas:.2f}"]
    audits = read("any-machine/audit")
    alarms = [f"{each['false_alarms']} of {each['audits']}" for each in audits["honest"]]
    budgets = ", ".join(f"{each['budget']:,}" for each in audits["honest"])
    answers[f"false alarms in audits of honest servers, budgets {budgets}"] = alarms
    found = sum(each["found_within_2000_requests"] for each in audits["usual"])
    number = sum(each["audits"] for each in audits["usual"])
    question = "usual faults that an audit finds within 2,000 requests, of five servers"
    answers[question] = [f"{found} of {number}"]
    names = "half_weights", "round", "suffix", "grammar", "come_and_go", "batch", "batch_laps"
    files = [f"{X86}/start", *(f"{ARM}/{name}" for name in ("start", *names, "scale"))]
    lines = [(question, ", ".join(map(str, found))) for question, found in answers.items()]
    return Table(("question", "answer"), lines, [*files, "any-machine/audit"])


TABLES: dict[str, Callable[[], Table]] = {
    "same-text": same_text,
    "default": default,
    "groups": groups,
    "sampled": sampled,
    "pass": passes,
    "decoding": decoding,
    "larger": larger,
    "code": code,
    "code-on-gpu": code_on_gpu,
    "drafters": drafters,
    "heads": heads,
    "rule": rule,
    "gpu": gpu,
    "gpu-peers": gpu_peers,
    "gpu-batches": gpu_batches,
    "gpu-passes": gpu_passes,
    "gpu-kernels": gpu_kernels,
    "server": server,
    "others": others,
}


def whole(number: float) -> str:
    return f"{number:,.0f}"


def quartiles(row: Any) -> str:
    return f"{row['median']:.2f} ({row['low']:.2f} to {row['high']:.2f})"


def markdown(table: Table) -> str:
    """The table, and links to its files below it, by their names on their machine."""
    head, *body = (f"| {' | '.join(map(str, line))} |" for line in (table.titles, *table.rows))
    text = "\n".join([head, "|---" * len(table.titles) + "|", *body])
    links = ", ".join(f"[{file}](../benchmarks/results/{file}.json)" for file in table.files)
    return f"{text}\n\nFrom {links}.\n"


def page(text: str) -> str:
    """The page with every table made anew."""
    return TABLE.sub(lambda found: f"{found[1]}{markdown(TABLES[found[2]]())}{found[3]}", text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
