"""Parts of a plan whose work a GPU may record, and replay in later steps."""

from typing import Any, ClassVar


class Recordable:
    """A part of a plan that says whether it is `recordable`: at every step of a phase it launches the same work on the
    same memory, whatever the numbers, never waits for it, and keeps nothing in Python. What changes from step to step
    it reads on the device, as the loss's scale, or the word that counts steps (`GroupContext.own_seed`).

    class MyCodec(gw.SimpleCodec, recordable=True)

    Each class says so for itself alone, for a subclass may do something else.
    """

    recordable: ClassVar[bool] = False

    def __init_subclass__(cls, *, recordable: bool = False, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "recordable" not in vars(cls):
            cls.recordable = recordable
