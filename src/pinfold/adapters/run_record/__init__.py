"""What runs without an agent: a list that commands of one user share."""

from pinfold.adapters.run_record.record import Entry, RunRecord, RunRecordError

__all__ = ["Entry", "RunRecord", "RunRecordError"]
