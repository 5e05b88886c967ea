"""The sync client of Sluice, for threads."""

from .cache import Cache, NearCache
from .client import Sluice
from .families import Bloom, Cuckoo, Delay, Limit, Once, Stock
from .locks import Lock, LockOptions

__all__ = ["Bloom", "Cache", "Cuckoo", "Delay", "Limit", "Lock", "LockOptions", "NearCache", "Once", "Sluice", "Stock"]
