"""Samples of a model, small and large, on which ways to send are measured."""

from collections.abc import Sequence

from gradwire.slots import Slot

PROBED_ELEMENTS, MOST_ELEMENTS = (1 << 14, 1 << 17, 1 << 19, 1 << 21), 1 << 25
"""How large samples of a model are, and how large one may be that shows its largest matrix."""


def samples_of(slots: Sequence[Slot]) -> list[list[Slot]]:
    """Samples of the model's matrices, or of its vectors where it has nothing else, from small to large ones: of the
    smallest matrices, and at last the largest matrix, for low ranks follow from a matrix's sides."""
    matrices = sorted([slot for slot in slots if not slot.is_vector] or slots, key=lambda slot: slot.numel)
    total, largest = sum(slot.numel for slot in matrices), matrices[-1].numel
    most = max(min(total, PROBED_ELEMENTS[-1]), min(largest, MOST_ELEMENTS))
    # far enough apart for a slope; of a small model two
    sizes = [elements for elements in PROBED_ELEMENTS if 2 * elements <= most] or [most // 8] * (most >= 8)
    return [*(_sample(matrices, elements) for elements in sizes), _sample(matrices[::-1], most)]


def _sample(slots: Sequence[Slot], elements: int) -> list[Slot]:
    """The first slots with so many elements together, the last one cut."""
    taken: list[Slot] = []
    for slot in slots:
        taken.append(_rows(slot, elements))
        elements -= taken[-1].numel
        if taken[-1] != slot or not elements:
            break
    return taken


def _rows(slot: Slot, elements: int) -> Slot:
    """As many whole rows of a slot as have so many elements at most, or that part of one row."""
    columns = slot.matrix[1]
    if not columns <= elements < slot.numel:
        return slot.part(min(elements, slot.numel))
    return Slot(slot.name, (elements // columns, columns), (columns, 1), slot.dtype)
