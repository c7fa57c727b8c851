"""The result of `certify`, as text and as JSON."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

FINE_BIAS = 0.02
"""A certificate that would not catch a bias this small says how many samples would."""


@dataclass(frozen=True)
class Finding:
    """One case: how far the emitted law is from the target's, and how that was measured."""

    case: str
    method: str  # "exact" or "sampled"
    bias: float  # total variation between the emitted law and the target's
    limit: float  # a bias above this is not explained by rounding or chance
    detectable: float  # the smallest bias that would have been caught
    power: float  # ... with at least this probability
    samples: int = 0
    note: str = ""

    @property
    def passed(self) -> bool:
        return not self.note and self.bias <= self.limit


@dataclass(frozen=True)
class Certificate:
    """The verdict on one rule or function over all cases."""

    subject: str
    findings: tuple[Finding, ...]
    reason: str = ""  # why the outcomes of a function could not be listed

    @property
    def lossless(self) -> bool:
        """Whether no case failed.

        That is a proof, to 1e-12, where every outcome was listed (`proven`).  For a sampled
        certificate it says that no bias was found, and none of `detectable` or more is likely.
        """
        return all(finding.passed for finding in self.findings)

    @property
    def proven(self) -> bool:
        """Whether it is lossless in every case by exact enumeration."""
        return self.lossless and self.method == "exact"

    @property
    def verdict(self) -> str:
        """The verdict as text: "lossless", "NOT lossless", or "no bias of 0.17 or more found"."""
        if not self.lossless:
            return "NOT lossless"
        if self.proven:
            return "lossless"
        return f"no bias of {_rounded_up(self.detectable):g} or more found"

    @property
    def method(self) -> str:
        kinds = {finding.method for finding in self.findings}
        return kinds.pop() if len(kinds) == 1 else "exact and sampled"

    @property
    def worst(self) -> Finding:
        """The case with the largest bias; a case that could not even run comes first."""
        return max(self.findings, key=lambda finding: (bool(finding.note), finding.bias))

    @property
    def bias(self) -> float:
        return self.worst.bias

    @property
    def detectable(self) -> float:
        """The smallest bias that every case would have caught."""
        return max(finding.detectable for finding in self.findings)

    def samples_for(self, bias: float) -> int:
        """Samples per case needed to catch this bias in every case."""
        needed = (finding.samples * (finding.detectable / bias) ** 2 for finding in self.findings)
        return math.ceil(max(needed))

    def to_dict(self) -> dict[str, Any]:
        return {
            "subject": self.subject,
            "verdict": self.verdict,
            "lossless": self.lossless,
            "proven": self.proven,
            "method": self.method,
            "reason": self.reason,
            "bias": self.bias,
            "worst_case": self.worst.case,
            "detectable_bias": self.detectable,
            "power": min(finding.power for finding in self.findings),
            "cases": [asdict(finding) | {"passed": finding.passed} for finding in self.findings],
        }

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)

    def __repr__(self) -> str:
        """One line; `print` shows the cases."""
        return f"Certificate({self._summary})"

    @property
    def _summary(self) -> str:
        return f"{self.subject}: {self.verdict} ({self.method}, {len(self.findings)} cases)"

    def __str__(self) -> str:
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
        lines.append(f"  Any bias of {self.detectable:.1e} or more would have been caught{chance}.")
        if self.reason:
            lines.append(f"  Sampled, since its outcomes cannot be listed: {self.reason}.")
        if self.lossless and not self.proven and self.detectable > FINE_BIAS:
            needed = float(f"{self.samples_for(FINE_BIAS):.1e}")
            lines.append(f"  To catch {FINE_BIAS} take about {needed:,.0f} samples per case.")
        return "\n".join(lines)


def _rounded_up(number: float) -> float:
    """Round up to two digits, so that no claim is stronger than the evidence."""
    step = 10.0 ** (math.floor(math.log10(number)) - 1)
    return float(f"{math.ceil(number / step - 1e-9) * step:.2g}")
