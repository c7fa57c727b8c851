"""TLS certificates, which are checked before the server accepts its first connection."""

from __future__ import annotations

import ssl
from pathlib import Path

from forerun.base.errors import InputError, explain

NOT_YET, EXPIRED = 9, 10  # OpenSSL's numbers for a certificate outside its time


def check_certificate(certificate: str, key: str) -> None:
    """Refuse files that are missing, are not PEM, or do not belong together, and certificates that
    have expired or are not valid yet."""
    server = load_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), certificate, key)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(certificate)  # so that its time is all that can be wrong
    try:
        _shake_hands(server, client)
    except ssl.SSLCertVerificationError as error:
        if error.verify_code not in (NOT_YET, EXPIRED):
            return  # whether clients trust it is for them to say
        wrong = "The certificate has expired."
        if error.verify_code == NOT_YET:
            wrong = "The certificate is not valid yet."
        cure = "Renew it, or correct this machine's clock."
        raise InputError(explain(wrong, certificate, cure)) from error


def load_certificate(context: ssl.SSLContext, certificate: str, key: str) -> ssl.SSLContext:
    """Load a certificate into a TLS context, for all connections from now on."""
    for path in (certificate, key):
        try:
            Path(path).read_bytes()
        except OSError as error:
            cure = "Name a file in PEM that this process may read."
            received = f"{path} ({type(error).__name__})"
            raise InputError(explain("A file for TLS cannot be read.", received, cure)) from error
    try:
        context.load_cert_chain(certificate, key, password="")
    except ssl.SSLError as error:
        received = f"{certificate}, {key}"
        if error.reason == "KEY_VALUES_MISMATCH":
            wrong = "The certificate and the key do not belong together."
            cure = "Name the key that the certificate was made for."
        else:
            wrong = f"The files are no certificate and key ({error.reason or 'no PEM'})."
            cure = "Use PEM: the certificate, then those that signed it; a key without a password."
        raise InputError(explain(wrong, received, cure)) from error
    return context


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """Perform a TLS handshake between a server and a client in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    while ends:
        for end in list(ends):
            try:
                end.do_handshake()
                ends.remove(end)
            except ssl.SSLWantReadError:
                continue
