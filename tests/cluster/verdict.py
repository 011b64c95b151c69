"""All entries of the store, read over REST."""

import json
import urllib.request


def stored(address: str) -> dict[str, tuple[int, int]]:
    """Per account its count and its total, as one instance answers for all partitions."""
    found: dict[str, tuple[int, int]] = {}
    cursor = ""
    while True:
        url = f"{address}/v1/stores/accounts/range?limit=50{cursor}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            page = json.load(answer)
        for entry in page["entries"]:
            found[entry["key"]] = entry["value"]["n"], entry["value"]["total"]
        if not page.get("cursor"):
            return found
        cursor = f"&cursor={page['cursor']}"
