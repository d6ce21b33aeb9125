"""A multipart upload that `engine.FakeStore` keeps."""

from dataclasses import dataclass, field

from storage.records import PartRecord, UploadRecord
from storage.requests import PutResult


@dataclass
class StoredUpload:
    """Its record, its parts by number, and the result of its Complete where there was one."""

    record: UploadRecord
    parts: dict[int, tuple[PartRecord, bytes]] = field(default_factory=dict)
    result: PutResult | None = None
