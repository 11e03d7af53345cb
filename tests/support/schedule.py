"""A scheduler of learning rates, of which controllers ask the rate."""


class Schedule:
    rate = 0.1

    def get_last_lr(self) -> list[float]:
        return [self.rate]
