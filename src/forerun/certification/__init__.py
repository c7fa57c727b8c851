"""Certification: whether a verifier is lossless, with proof or stated error odds."""

from forerun.certification.cases import Case as Case
from forerun.certification.cases import standard_cases as standard_cases
from forerun.certification.cases import tree_cases as tree_cases
from forerun.certification.certificate import Certificate as Certificate
from forerun.certification.certificate import Finding as Finding
from forerun.certification.certify import certify as certify
