"""Certificates for tests, made by CAs of their own."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme

from holdfast.settings.security import SecuritySettings


class Authority:
    """A CA with a folder for its files."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._ca = trustme.CA()
        self._issued = 0
        self.file = str(folder / "ca.pem")
        self._ca.cert_pem.write_to_path(self.file)

    def issue(self, host: str = "127.0.0.1", *, expired: bool = False, ca_file: str = "") -> SecuritySettings:
        """The settings of a process with a certificate for a host; `ca_file` is the CA that it trusts itself."""
        self._issued += 1
        end = datetime.now(UTC) - timedelta(days=1) if expired else None
        issued = self._ca.issue_cert(host, not_after=end)
        cert, key = (str(self._folder / f"{self._issued}-{name}.pem") for name in ("cert", "key"))
        issued.private_key_pem.write_to_path(key)
        for pem in issued.cert_chain_pems:
            pem.write_to_path(cert, append=True)
        return SecuritySettings(tls_cert_file=cert, tls_key_file=key, tls_ca_file=ca_file or self.file)
