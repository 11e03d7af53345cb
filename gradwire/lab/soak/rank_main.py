"""The process of a rank of a long run, or of the store that outlives all ranks."""

import json
import sys

from torch.distributed import PrefixStore, TCPStore  # pyright: ignore[reportPrivateImportUsage]

from gradwire.lab.soak.checkpointed_rank import CheckpointedRank
from gradwire.lab.soak.elastic_rank import ElasticRank
from gradwire.lab.soak.fork_server import serve
from gradwire.lab.soak.soaked_model import IN_PLACE


def main() -> None:
    """Serves the store, or trains, by the first line of standard input."""
    facts = json.loads(sys.stdin.readline())
    store = TCPStore(*facts["address"], is_master=facts["what"] == "store", wait_for_workers=False)
    # the store lives until its standard input closes; a rank until its orders end
    if facts["what"] == "store":
        sys.stdin.read()
    else:
        rank = ElasticRank if facts["front_end"] in IN_PLACE else CheckpointedRank
        rank(PrefixStore(facts["job"], store), facts).live()


if __name__ == "__main__":
    serve(main)
