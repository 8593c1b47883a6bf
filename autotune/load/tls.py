"""TLS to a server under load: whose certificate is believed, and what a failed handshake means in words.

Only the standard library and the errors are imported here, because every client process imports this at start.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from autotune.errors import SpecError


def client_context(ca_file: str, insecure: bool) -> ssl.SSLContext:
    """What connections to an https server use.

    Args:
        ca_file: PEM file with the authority, or the self-signed certificate itself; empty: the system's authorities.
        insecure: believe any certificate.

    Raises:
        SpecError: the file is missing or holds no certificate.
    """
    if insecure:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    if not ca_file:
        return ssl.create_default_context()
    if not Path(ca_file).is_file():
        raise SpecError(f"{ca_file} is no file", key="--ca", hint="give a PEM file with the authority's certificate")
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (ssl.SSLError, OSError) as error:
        raise SpecError(f"{ca_file} holds no certificate: {error}", key="--ca", hint="it must be a PEM file") from None


def handshake_fault(error: BaseException) -> tuple[str, str] | None:
    """What went wrong and what to do, when a TLS handshake is the cause of an error; else None."""
    seen: BaseException | None = error
    while seen is not None:
        # aiohttp's own errors are of these classes too, without the attributes, and hold the real one.
        if isinstance(seen, ssl.SSLCertVerificationError) and hasattr(seen, "verify_message"):
            return (
                f"its certificate is not accepted: {seen.verify_message}",
                "give the authority with --ca FILE, or --insecure on a network that you trust",
            )
        if isinstance(seen, ssl.SSLError) and hasattr(seen, "reason"):
            if seen.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"):
                return "it does not speak TLS", "write http:// instead of https://"
            return f"the TLS handshake failed: {seen.reason or seen}", "look at the server's TLS set-up"
        seen = getattr(seen, "certificate_error", None) or getattr(seen, "os_error", None) or seen.__cause__
    return None


def reason_of(error: BaseException) -> str:
    """Why a connection could not be opened."""
    fault = handshake_fault(error)
    return fault[0] if fault is not None else str(error) or type(error).__name__
