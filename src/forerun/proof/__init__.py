"""Certification: decides whether a verifier is lossless, by proof or with stated error
probabilities."""

from forerun import rules
from forerun.proof.cases import Case as Case
from forerun.proof.cases import edge_cases as edge_cases
from forerun.proof.cases import standard_cases as standard_cases
from forerun.proof.cases import tree_cases as tree_cases
from forerun.proof.certificate import Certificate as Certificate
from forerun.proof.certificate import Finding as Finding
from forerun.proof.certify import certify as certify
from forerun.proof.certify import doubt

rules.DOUBTS.append(doubt)
