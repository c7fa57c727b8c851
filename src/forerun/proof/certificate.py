"""The result of `certify`, as text and as JSON."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

FINE_BIAS = 0.02
"""A certificate that would not catch a bias this small says how many samples would."""
CONSTANT_BIAS = 1e-8
"""A bias below this cannot come from a rule itself; it comes from a small constant that keeps a
denominator above 0."""


@dataclass(frozen=True)
class Finding:
    """The result of one case: how far the emitted law is from the target's, and how that was
    measured."""

    case: str
    method: str  # "exact" or "sampled"
    bias: float  # total variation between the emitted law and the target's
    limit: float  # a bias above this is not explained by rounding or chance
    detectable: float  # the smallest bias that would have been caught
    power: float  # ... with at least this probability
    samples: int = 0
    note: str = ""
    example: str = ""  # the text whose probability is furthest off, where it is known

    @property
    def passed(self) -> bool:
        """Whether rounding or chance explains the bias, and no other problem was noted."""
        return not self.note and self.bias <= self.limit


@dataclass(frozen=True)
class Certificate:
    """The verdict on one rule or function over all cases."""

    subject: str
    """The name of the rule or function."""
    findings: tuple[Finding, ...]
    """The results of all cases."""
    reason: str = ""
    """Why the outcomes of a function could not be listed."""
    scope: str = ""
    """A description of what the cases cover."""
    called: str = ""
    """How the function was called, if it has a signature of its own."""
    rounding: str = ""
    """The number format whose rounding explains the remaining bias."""

    @property
    def lossless(self) -> bool:
        """Whether no case failed.

        If every outcome was listed (`proven`), this is a proof, to 1e-12. If outcomes were sampled,
        it means that no bias was found, and that a bias of `detectable` or more is unlikely.
        """
        return all(finding.passed for finding in self.findings)

    @property
    def proven(self) -> bool:
        """Whether exact enumeration shows no bias in any case, to 1e-12."""
        return self.lossless and self.method == "exact" and not self.rounding

    @property
    def verdict(self) -> str:
        """The verdict as text: "lossless", "NOT lossless", or "no bias of 0.17 or more found".

        For code that computes in float32 it can be "lossless up to float32 rounding (3e-08)".
        """
        if not self.lossless:
            return "NOT lossless"
        if self.proven:
            return "lossless"
        if self.rounding and self.method == "exact":
            return f"lossless up to {self.rounding} rounding ({_rounded_up(self.bias):g})"
        return f"no bias of {_rounded_up(self.detectable):g} or more found"

    @property
    def method(self) -> str:
        """How it was tested: "exact", "sampled", or "exact and sampled" if cases differ."""
        kinds = {finding.method for finding in self.findings}
        return kinds.pop() if len(kinds) == 1 else "exact and sampled"

    @property
    def worst(self) -> Finding:
        """The case with the largest bias; a case that could not be run counts as the worst."""
        return max(self.findings, key=lambda finding: (bool(finding.note), finding.bias))

    @property
    def bias(self) -> float:
        """The largest bias of all cases."""
        return self.worst.bias

    @property
    def detectable(self) -> float:
        """The smallest bias that would have been found in every case."""
        return max(finding.detectable for finding in self.findings)

    def samples_for(self, bias: float) -> int:
        """The number of samples per case needed to catch this bias in every case."""
        needed = (finding.samples * (finding.detectable / bias) ** 2 for finding in self.findings)
        return math.ceil(max(needed))

    def to_dict(self) -> dict[str, Any]:
        """The certificate as a dictionary for JSON."""
        return {
            "subject": self.subject,
            "verdict": self.verdict,
            "lossless": self.lossless,
            "proven": self.proven,
            "method": self.method,
            "reason": self.reason,
            "scope": self.scope,
            "called": self.called,
            "rounding": self.rounding,
            "bias": self.bias,
            "worst_case": self.worst.case,
            "detectable_bias": self.detectable,
            "power": min(finding.power for finding in self.findings),
            "cases": [asdict(finding) | {"passed": finding.passed} for finding in self.findings],
        }

    def to_json(self) -> str:
        """The certificate as JSON text."""
        return json.dumps(self.to_dict(), indent=2)

    def __repr__(self) -> str:
        """The certificate in one line; `print` shows the cases."""
        return f"Certificate({self._summary})"

    @property
    def _summary(self) -> str:
        """One line: the verdict, the number of cases, and what they cover."""
        scope = f": {self.scope}" if self.scope else ""
        return f"{self.subject}: {self.verdict} ({self.method}, {len(self.findings)} cases{scope})"

    def _example(self) -> list[str]:
        """A line with a wrong probability in the first case that failed; nothing if that bias is
        a constant's, or if no probability is known."""
        for finding in self.findings:
            if finding.example and not finding.passed and finding.bias >= CONSTANT_BIAS:
                return [f"  For example, in the case {finding.case!r} {finding.example}."]
        return []

    def __str__(self) -> str:
        """The certificate as a table for a terminal."""
        lines = [
            self._summary,
            f"  {'case':<34}{'method':<9}{'bias (TV)':>11}{'would catch':>13}",
        ]
        for finding in self.findings:
            mark = " " if finding.passed else "!"
            lines.append(
                f"{mark} {finding.case:<34}{finding.method:<9}{finding.bias:>11.2e}"
                f"{finding.detectable:>13.1e}  {finding.note}".rstrip()
            )
        power = min(finding.power for finding in self.findings)
        chance = "" if power == 1 else f", each with probability {power:.4f} or more"
        within = " in these cases" if self.scope else ""
        lines.append(
            f"  Any bias of {self.detectable:.1e} or more{within} would have been caught{chance}."
        )
        lines += self._example()
        if self.scope:
            lines.append(f"  Beyond them ({self.scope}) nothing was tried.")
        if self.called:
            lines.append(f"  Called as {self.called}.")
        if not self.lossless and self.bias < CONSTANT_BIAS:
            lines.append(
                "  So small a bias comes from a constant such as 1e-10 beside a probability; leave "
                "it out where that is above 0."
            )
        if self.rounding:
            lines.append(
                f"  Its numbers have the precision of {self.rounding}; a smaller bias than that "
                "cannot be told from rounding."
            )
        if self.reason:
            lines.append(f"  Sampled, since its outcomes cannot be listed: {self.reason}.")
        if self.lossless and not self.proven and self.detectable > FINE_BIAS:
            needed = float(f"{self.samples_for(FINE_BIAS):.1e}")
            lines.append(
                f"  To catch {FINE_BIAS} take about {needed:,.0f} samples per case: "
                f"samples={needed:.0f}, or --samples {needed:.0f}."
            )
        return "\n".join(lines)


def _rounded_up(number: float) -> float:
    """Round up to two digits, so that no claim is stronger than the evidence."""
    if number == 0:
        return 0.0
    step = 10.0 ** (math.floor(math.log10(number)) - 1)
    return float(f"{math.ceil(number / step - 1e-9) * step:.2g}")
