"""Prefetching: the next item is made while the last one is in use."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def prefetch(items: Iterator[T]) -> Iterator[T]:
    """The endless `items`, each next one made on a thread meanwhile."""
    # one item ahead of the one in use
    with ThreadPoolExecutor(1, "prefetch") as pool:
        coming = pool.submit(next, items)
        while True:
            item = coming.result()
            coming = pool.submit(next, items)
            yield item
