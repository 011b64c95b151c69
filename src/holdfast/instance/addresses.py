"""The addresses by which others reach an instance, which may differ from those that it listens on."""

from urllib.parse import urlsplit

from holdfast.instance.config import InstanceConfig


def advertised(config: InstanceConfig, port: int) -> tuple[str, int]:
    """The host and port by which others reach what listens on a port here.

    >>> config = InstanceConfig(app="game", name="a", log_url="log", state_dir="state", advertise="10.0.0.7")
    >>> advertised(config, 7070)
    ('10.0.0.7', 7070)
    """
    if config.advertise is None:
        return config.host, port
    host, colon, given = config.advertise.rpartition(":")
    return (host, int(given)) if colon else (config.advertise, port)


def rest_address(config: InstanceConfig, url: str) -> str:
    """The address by which others reach REST here: that of the instance, if REST listens on all of the host's.

    >>> config = InstanceConfig(app="game", name="a", log_url="log", state_dir="state", advertise="10.0.0.7:7070")
    >>> rest_address(config, "http://0.0.0.0:8080"), rest_address(config, "http://10.1.1.1:8080")
    ('http://10.0.0.7:8080', 'http://10.1.1.1:8080')
    """
    parts = urlsplit(url)
    if config.advertise is None or parts.hostname not in ("0.0.0.0", "::"):
        return url
    return f"{parts.scheme}://{config.advertise.partition(':')[0]}:{parts.port}"
