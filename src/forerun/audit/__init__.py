"""`fr.audit`: tests from outside whether an OpenAI-compatible endpoint's speculation is
lossless."""

from forerun.audit.auditing import Audit as Audit
from forerun.audit.auditing import Settings as Settings
from forerun.audit.auditing import audit as audit
from forerun.audit.findings import Finding as Finding
from forerun.audit.findings import Report as Report
from forerun.audit.findings import Status as Status
from forerun.audit.wire import EndpointError as EndpointError
