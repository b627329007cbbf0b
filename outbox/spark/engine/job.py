"""The job that the harvester gives to the process that drives Spark. Plain values; no I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Job:
    url: str
    """The address of the database, as libpq reads it."""
    table: str
    name: str
    """The name of the sink, and so of the transactional ids and the ledger."""
    checkpoint: str
    properties: Mapping[str, Any]
    """Settings of Kafka clients."""
    master: str = "local[*,4]"
    transform: str = ""
    """Dotted path of a function from DataFrame to DataFrame."""
    config: Mapping[str, str] = field(default_factory=dict)
    """Of Spark."""
    slices: int = 4
    max_records: int = 50_000
    resend: bool = False
    connector: bool = False
    """With Spark's own Kafka connector, for a transformation that reads topics."""
    origin: str = ""
    """The database's UUID."""
    owner: str = ""
    """Unique: the names of this driver's leases begin with it."""
    id_header: str = ""
    keep_empty_key: bool = False
    transaction_timeout_s: float = 60.0
    ledger_retention_s: float = 7 * 86400.0

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> Job:
        return cls(**json.loads(text))
