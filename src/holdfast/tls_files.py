"""The TLS of a client from files, for callers whose users name files: commands and Spark's options.

Programs give `hf.Client` an `ssl.SSLContext` of their own.
"""

import ssl
from dataclasses import dataclass

from holdfast.errors import ErrorCategory, HoldfastError


class BadTlsFile(HoldfastError):
    """A file that the user has named can't be used."""

    category = ErrorCategory.INVALID


@dataclass(frozen=True)
class TlsOptions:
    """The names of the options with which a user names the files, for errors."""

    ca: str
    cert: str
    key: str


def tls_of_files(
    options: TlsOptions, ca_file: str | None, cert_file: str | None, key_file: str | None
) -> ssl.SSLContext | None:
    """Trusts the CA, or those of the system without one, and shows the certificate. None without any file."""
    if ca_file is None and cert_file is None and key_file is None:
        return None
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise BadTlsFile(f"{options.ca} = {ca_file} {_why(error)} Give the CA of the instances, in PEM.") from None
    if cert_file is None and key_file is None:
        return context
    if cert_file is None or key_file is None:
        given, missing = (options.cert, options.key) if key_file is None else (options.key, options.cert)
        raise BadTlsFile(f"{given} is given without {missing}. Give both; a file that has both may be given twice.")
    try:
        context.load_cert_chain(cert_file, key_file, password=lambda: b"")  # nobody is asked for one
    except (OSError, ValueError) as error:
        raise BadTlsFile(
            f"{options.cert} = {cert_file} with {options.key} = {key_file} {_why(error)} Give a certificate and its "
            "private key in PEM, without a password."
        ) from None
    return context


def _why(error: Exception) -> str:
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError):
        return f"can't be read: {error.strerror}."
    return "can't be used."
